// Whether an executor that its worker launched stands still: decided from what the worker sees of
// it now and then. Pure: time is an argument. Thread-compatible.
#ifndef TESSERA_WORKER_KEEPER_STANDSTILL_H_
#define TESSERA_WORKER_KEEPER_STANDSTILL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "shm/control_page.h"

namespace tessera {

class Standstill {
 public:
  // `patience`: for one that is stopped, or was asked to leave its epoch.
  Standstill(absl::Duration patience, absl::Duration collective_timeout)
      : patience_(patience), longest_operation_(3 * collective_timeout + patience) {}

  struct Look {
    bool is_stopped = false;                    // By a signal.
    absl::Time asked = absl::InfiniteFuture();  // To leave its epoch; nobody asked.
    // Of its control page, while it is in the running epoch: the operation that it is at, 0: none,
    // and how many it has done.
    uint32_t kind = 0;
    uint32_t consumed = 0;
  };
  struct Verdict {
    std::string why;  // "stands still for 5s"
    bool end = true;  // False: it may wait for a disk, and is only told of.
  };
  // Nothing: it makes progress, as far as can be seen. An operation waits for other ranks a few
  // times, each time for the collective timeout at most, so that one which takes longer hangs; but
  // files take as long as they take.
  std::optional<Verdict> Judge(const Look& look, absl::Time now);

 private:
  const absl::Duration patience_;
  const absl::Duration longest_operation_;
  absl::Time ran_ = absl::InfinitePast();  // Was not stopped. Of the first look: then.
  absl::Time moved_;                       // Was at another operation than now.
  uint32_t kind_ = 0, consumed_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_STANDSTILL_H_
