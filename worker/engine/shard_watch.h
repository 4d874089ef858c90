// Detects whether a rank's shards are still as a step left them: a checksum of their bits right
// after the step, and another before the next step uses them. A bit that memory flips in between is
// found, with its unit. Only steps that are watched are checked: a flip after another step goes
// into the state.
//
// Of shards in host memory. Thread-compatible.
#ifndef TESSERA_WORKER_ENGINE_SHARD_WATCH_H_
#define TESSERA_WORKER_ENGINE_SHARD_WATCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "job/job_config.h"
#include "job/job_memory.h"
#include "layout/model_layout.h"

namespace tessera {

class ShardWatch {
 public:
  // `state` is the rank's state region. `found` is in memory that outlives executors: the next one
  // knows what this one found. All of it outlives this.
  ShardWatch(const ModelLayout* layout, const JobConfig* config, const JobMemory* memory,
             const std::byte* state, std::atomic<int64_t>* found)
      : layout_(layout), config_(config), memory_(memory), state_(state), found_(found) {}

  // The version of `step` is whole. Sums it if the config says so of this step.
  void Written(int64_t step);
  // The first unit whose shards of `step` have other bits than they had when it was written, by
  // this or an earlier executor's watch; -1: none has, or it is not watched.
  int FindChanged(int64_t step) const;

 private:
  uint64_t Sum(int unit, int64_t step) const;  // Of parameters and moments.

  const ModelLayout* layout_;
  const JobConfig* config_;
  const JobMemory* memory_;
  const std::byte* state_;
  std::atomic<int64_t>* found_;
  int64_t watched_step_ = -1;
  std::vector<uint64_t> sums_;  // By unit, of that step.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_SHARD_WATCH_H_
