// Where a load puts what it reads: into the next version and, in the same pass, into the parameters
// that trainers read, while the elements are in the CPU's caches.
//
//   Set ──► next version                nobody reads it before the load is decided
//       └─► published parameters        of no step, from the first Set until all ranks agree: then
//                                       of the next version, else published again as they were
//
// No trainer reads meanwhile, since all are in the load. A process that dies in it leaves a mark in
// the group's page, which makes its successor publish again. Trainers on a GPU have their
// parameters there, where the CPU does not write: those are published once the load is decided, and
// a state that is on the GPU as well is read into an image of the version. Confined to the engine's
// thread.
#ifndef TESSERA_WORKER_ENGINE_LOAD_TARGET_H_
#define TESSERA_WORKER_ENGINE_LOAD_TARGET_H_

#include <cstdint>

#include "layout/values.h"
#include "worker/device/rank_kernels.h"
#include "worker/engine/addressable_state.h"
#include "worker/engine/group_page.h"
#include "worker/engine/sharded_optimizer.h"
#include "worker/engine/state_files.h"

namespace tessera {

class LoadTarget final : public StateWriter {
 public:
  // Nothing in here is owned; all of it outlives this.
  struct Options {
    ShardedOptimizer* optimizer = nullptr;
    AddressableState* state = nullptr;  // Where the version to come is written.
    RankKernels* kernels = nullptr;
    bool publishes = true;  // Trainers' parameters are in host memory.
    GroupPage* group = nullptr;
    int local_index = 0;  // The rank's, in `group`.
    int64_t version = 0;  // To come: one more than the rank is at, or if `first`, 0.
    bool first = false;
  };
  explicit LoadTarget(const Options& options) : options_(options) {}

  void Set(StateArray array, const ShardSegment& segment, int64_t begin_elements,
           const ConstValues& values) override;
  void Clear(StateArray array, const ShardSegment& segment) override;
  void Keep(StateArray array, const ShardSegment& segment) override;

  // Called once all were set, or none will be any more: a thread that sees what this thread stores
  // from here on sees the set values too.
  void Finish();

  // Some parameter was published; once all were set or kept, all are, as of the version to come.
  bool has_published() const { return has_published_; }

 private:
  // Where the segment's elements will be.
  Values Room(StateArray array, const ShardSegment& segment);
  void Publish(const ShardSegment& segment, int64_t begin_elements, const ConstValues& values);

  const Options options_;
  bool has_published_ = false;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_LOAD_TARGET_H_
