// A version of a rank's state in host memory, for code that reads and writes it there: files and
// puts, when the state itself is on a GPU.
//
//   state on the device  | p v0 | p v1 | m v0 | m v1 | ...
//                 Pull(1)    │ ▲
//                            ▼ │ Push(1)
//   image                | p | m | v |
//
// Takes memory when it is first reserved, half of what the state takes, and keeps it. Used by one
// thread at a time.
#ifndef TESSERA_WORKER_ENGINE_STATE_IMAGE_H_
#define TESSERA_WORKER_ENGINE_STATE_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "job/job_memory.h"
#include "layout/values.h"
#include "worker/device/rank_kernels.h"
#include "worker/engine/sharded_optimizer.h"

namespace tessera {

class StateImage {
 public:
  // `plan` and `state`, the rank's state region, outlive the image.
  StateImage(const JobMemory* plan, OptimizerKind optimizer, std::byte* state);

  // Takes the memory, where it has none. Before all else.
  // Errors: ResourceExhausted  the host has none left: the message has how much was wanted
  //         those of RankKernels::AllocateOnHost
  absl::Status Reserve(RankKernels* kernels);
  int64_t size_bytes() const { return static_cast<int64_t>(arrays_.size()) * array_bytes_; }

  // The image becomes version `version` of the state; or all zero. Waits.
  // Errors: those of RankKernels::Finish
  absl::Status Pull(int version, RankKernels* kernels);
  void Clear();
  // Version `version` of the state becomes the image. Waits. Errors: those of RankKernels::Finish
  absl::Status Push(int version, RankKernels* kernels);

  // Where the segment's elements are. After Pull or Clear.
  Values At(StateArray array, const ShardSegment& segment) const;

 private:
  std::byte* Array(StateArray array) const;

  const JobMemory* const plan_;
  std::vector<StateArray> arrays_;  // Which there are.
  std::byte* const state_;
  const int64_t array_bytes_;
  Buffer image_;
};

// One that a save in the background keeps reading, and one for the next version.
struct StateImages {
  StateImage saved;
  StateImage staged;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_STATE_IMAGE_H_
