// The versions of a rank's state: the one that is whole, and the one to come.
//
//   AwaitRoom ──► staged, or updated ──► decided by all ranks ──► Apply: whole, and published
//
// Confined to the engine's thread, while the post-backward stream is idle.
#ifndef TESSERA_WORKER_ENGINE_STATE_VERSIONS_H_
#define TESSERA_WORKER_ENGINE_STATE_VERSIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "worker/engine/addressable_state.h"
#include "worker/engine/early_updates.h"
#include "worker/engine/engine_context.h"
#include "worker/engine/step_vote.h"

namespace tessera {

// By unit: the arrays of its state that were staged, a bit each.
using StagedArrays = std::vector<uint32_t>;
constexpr uint32_t StagedBit(StateArray array) { return 1u << static_cast<int>(array); }

class StateVersions {
 public:
  // Both outlive this.
  StateVersions(EngineContext* context, const EarlyUpdates* early);

  // Brings the shard to `resume_step`, redoing a decided update where an earlier executor died in
  // it. Errors: Internal  it is at another step.
  absl::Status Reach(Step resume_step);
  // Publishes the parameters of `step` where an earlier executor died in a load, or before it had
  // published.
  absl::Status PublishIfNot(int64_t step);

  // Waits until the version after `step` may be written: no reader holds what it overwrites, and no
  // save reads it (state_hold.h, state_files.h). Errors: why to stop.
  absl::Status AwaitRoom();
  // Of the version to come, or the job's first one. Requires that next() has its memory.
  absl::Status BeginStaging(bool first);
  // What the version to come has already, of trainers' writes.
  StagedArrays& staged() { return staged_; }
  void ForgetStaged();

  // The decided `step` becomes whole, and trainers see it.
  absl::Status Apply(int64_t step);
  // A load published version `step` before it was decided; -1: it is decided.
  void SetPublishedAhead(int64_t step) { published_ahead_ = step; }
  // The ranks did not agree to have it: publishes the last whole version again.
  absl::Status TakeBackPublished();

  // For files and puts: a version to be saved, and the one to come.
  AddressableState& saved() { return *saved_; }
  AddressableState& next() { return *next_; }

 private:
  EngineContext& context_;
  const EarlyUpdates& early_;
  std::unique_ptr<AddressableState> saved_, next_;
  StagedArrays staged_;
  int64_t published_ahead_ = -1;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_STATE_VERSIONS_H_
