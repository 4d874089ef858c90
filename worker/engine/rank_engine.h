// Runs one rank's operations in one epoch: unshard, reduce, step.
//
//   ring ──► engine thread ── unshard: waits for the peers' versions, copies nothing; then gathers
//                                      ahead of the trainer, in the recorded order
//                          ── reduce:  on the post-backward stream, so that the next unshard of
//                                      backward does not wait for it
//                          ── step:    after the last reduction: vote, decide, update, publish
//
// The engine is the loop over operations; what it does with each is its parts': unit_gathers.h,
// gradient_reductions.h, early_updates.h, step_runner.h, state_versions.h, state_writes.h,
// put_applier.h, slot_reads.h, file_operations.h.
//
// An engine lives for one epoch; what must survive it (shard state, reduced gradients, decisions)
// is in memory that it is given. Run() is called by one thread; Stop() by any.
//
// Errors of one operation that every rank sees alike (a non-finite gradient, a failed save) go to
// the trainer as the operation's result and the epoch continues. Any other error ends Run(). After
// an error of the rank's device nothing more is published, and the engine's process must end.
//
// Source: stream order and windows as torch/distributed/fsdp/_runtime_utils.py.
#ifndef TESSERA_WORKER_ENGINE_RANK_ENGINE_H_
#define TESSERA_WORKER_ENGINE_RANK_ENGINE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/ids.h"
#include "worker/engine/early_updates.h"
#include "worker/engine/engine_context.h"
#include "worker/engine/engine_parts.h"
#include "worker/engine/file_operations.h"
#include "worker/engine/gradient_reductions.h"
#include "worker/engine/put_applier.h"
#include "worker/engine/rank_engine_options.h"
#include "worker/engine/slot_reads.h"
#include "worker/engine/state_versions.h"
#include "worker/engine/state_writes.h"
#include "worker/engine/step_runner.h"
#include "worker/engine/unit_gathers.h"

namespace tessera {

class RankEngine {
 public:
  using Options = RankEngineOptions;
  explicit RankEngine(Options options);

  // Brings the shard to `resume_step`, redoing a decided update where an earlier executor died in
  // it. Start opens the control page for `epoch`, too. Errors: Internal  it is at another step.
  absl::Status Reach(Step resume_step);
  absl::Status Start(Step resume_step);
  // Runs operations until Stop() or an error, which is then in the control page too.
  absl::Status Run();
  // Whether Run() ended since the trainer asked for it, with the trainer's own error.
  bool trainer_failed() const { return trainer_failed_; }
  // Makes Run() return `reason` (not OK) soon. Thread-safe; the first reason counts.
  void Stop(const absl::Status& reason);
  // The same where nothing that was asked of this rank is under way, and without ending the epoch:
  // other ranks finish what needs this one no more. False: something is, and nothing was done.
  // After the trainer's last operation.
  bool Leave();

 private:
  // Waits until the trainer has submitted more, or for an interruption.
  void AwaitSubmission(uint32_t submitted);
  absl::Status Execute(const Op& op);
  absl::Status DropGradients(int unit);  // -1: of all units.
  // Run() ends with `status`: ends the peers' waits and the stream's work. Returns what the trainer
  // is told.
  absl::Status End(absl::Status status);
  void AbortCommunicators(const absl::Status& reason);

  EngineContext context_;
  EarlyUpdates early_;
  GradientReductions reductions_;
  UnitGathers gathers_;
  StateVersions versions_;
  PutApplier puts_;
  const EngineParts parts_;  // All of the above.
  StepRunner steps_;
  StateWrites writes_;
  SlotReads reads_;
  FileOperations files_;
  bool trainer_failed_ = false;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_RANK_ENGINE_H_
