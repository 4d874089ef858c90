#include "coordinator/service/line_limit.h"

#include <utility>

namespace tessera::coordinator {

std::optional<LineLimit::Line> LineLimit::Take(const std::string& client, absl::Time now) {
  absl::MutexLock lock(&mu_);
  Minute& minute = clients_.try_emplace(client, Minute{now}).first->second;
  if (now - minute.began_at >= absl::Minutes(1)) {
    minute.began_at = now;
    // What was left out stays until the next line tells of it.
    minute.lines = 0;
  }
  if (minute.lines == kLinesAMinute) {
    ++minute.left_out;
    return std::nullopt;
  }
  ++minute.lines;
  return Line{minute.lines == kLinesAMinute, std::exchange(minute.left_out, 0)};
}

}  // namespace tessera::coordinator
