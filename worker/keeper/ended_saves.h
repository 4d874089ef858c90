// The last checkpoints of a job that ended, each once: a coordinator that was away is told of them
// again. Thread-compatible.
#ifndef TESSERA_WORKER_KEEPER_ENDED_SAVES_H_
#define TESSERA_WORKER_KEEPER_ENDED_SAVES_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "proto/saves.pb.h"

namespace tessera {

class EndedSaves {
 public:
  static constexpr size_t kMax = 16;

  // A rank says how one ended. False: nothing of it is new.
  bool Add(const v1::SaveReport& report);
  const std::deque<v1::SaveReport>& reports() const { return reports_; }
  // The requests up to this one are over. What became of this one is kept until the next one ends:
  // the coordinator waits for it, and requests nothing else before.
  int64_t request() const { return request_; }

 private:
  std::deque<v1::SaveReport> reports_;
  int64_t request_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_ENDED_SAVES_H_
