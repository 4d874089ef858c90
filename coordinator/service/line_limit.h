// How many lines of a log are about one client: the first ten of a minute, and with the first of a
// later one how many were left out. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LINE_LIMIT_H_
#define TESSERA_COORDINATOR_SERVICE_LINE_LIMIT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera::coordinator {

class LineLimit {
 public:
  static constexpr int kLinesAMinute = 10;

  struct Line {
    bool is_last = false;  // Of this minute.
    int64_t left_out = 0;  // Since the line before.
  };
  // Nothing: the line is left out.
  std::optional<Line> Take(const std::string& client, absl::Time now);

 private:
  struct Minute {
    absl::Time began_at;
    int lines = 0;
    int64_t left_out = 0;
  };

  absl::Mutex mu_;
  std::map<std::string, Minute> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LINE_LIMIT_H_
