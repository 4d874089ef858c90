// Where a load puts what it reads: into the version to come and, in the same pass, where trainers
// have the parameters, while the elements are in the processor's caches.
//
//   Set ──► version to come             nobody looks there before it is decided
//       └─► published parameters        of no step, from the first Set until all ranks agree: then
//                                       of the version to come, else published again as they were
//
// No trainer reads meanwhile, since all are in the load; and whoever dies in it leaves a mark in
// the group's page, by which whoever follows publishes again. Trainers on a GPU have their
// parameters there, where the processor does not write: they are published once it is decided, and
// a state that lies there as well is read into an image of the version. Confined to the engine's
// thread.
#ifndef TESSERA_WORKER_ENGINE_LOAD_TARGET_H_
#define TESSERA_WORKER_ENGINE_LOAD_TARGET_H_

#include <cstdint>

#include "layout/values.h"
#include "worker/device/rank_kernels.h"
#include "worker/engine/group_page.h"
#include "worker/engine/sharded_optimizer.h"
#include "worker/engine/state_files.h"
#include "worker/engine/state_image.h"

namespace tessera {

class LoadTarget final : public StateWriter {
 public:
  // Nothing in here is owned; all of it outlives this.
  struct Options {
    ShardedOptimizer* optimizer = nullptr;
    StateImage* image = nullptr;  // Null: the state is in memory of the processor.
    RankKernels* kernels = nullptr;
    bool publishes = true;  // What trainers have lies in memory of the processor.
    GroupPage* group = nullptr;
    int local_index = 0;  // The rank's, in `group`.
    int64_t version = 0;  // To come: one more than the rank is at, or if `first`, 0.
    bool first = false;
  };
  explicit LoadTarget(const Options& options) : options_(options) {}

  void Set(StateArray array, const ShardSegment& segment, int64_t begin_elements,
           const ConstValues& values) override;
  Values Room(StateArray array, const ShardSegment& segment) override;
  void Clear(StateArray array, const ShardSegment& segment) override;
  void Keep(StateArray array, const ShardSegment& segment) override;

  // Once all were set, or none will be any more: what was set is seen by whoever sees what this
  // thread stores from here on.
  void Finish();

  // Some parameter was published; once all were set or kept, all are, as of the version to come.
  bool has_published() const { return has_published_; }

 private:
  void Publish(const ShardSegment& segment, int64_t begin_elements, const ConstValues& values);

  const Options options_;
  bool has_published_ = false;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_LOAD_TARGET_H_
