// Runs one rank's operations in one epoch: unshard, reduce, step.
//
//   ring ──► engine thread ── unshard: waits for the peers' versions, copies nothing; then gathers
//                                      ahead of the trainer, in the recorded order
//                          ── reduce:  on the post-backward stream, so that the next unshard of
//                                      backward does not wait for it
//                          ── step:    after the last reduction: vote, decide, update, publish
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

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "job/job_memory.h"
#include "layout/model_layout.h"
#include "worker/device/host/kernels.h"
#include "worker/engine/group_page.h"
#include "worker/engine/order_tracker.h"
#include "worker/engine/rank_engine_options.h"
#include "worker/engine/remote_slices.h"
#include "worker/engine/shard_watch.h"
#include "worker/engine/sharded_optimizer.h"
#include "worker/engine/slot_table.h"
#include "worker/engine/step_vote.h"
#include "worker/memory/control_page.h"

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
  absl::Status Ordered(OpKind kind, int unit, int64_t count_elements, DType dtype);
  // The step under way. Initial values make step 0, with an order of its own, so that step 1
  // records what later steps repeat.
  int64_t OrderStep() const;
  void PublishProgress(int64_t step);  // For displays and heartbeats: a step or pass begins.
  absl::Status EndForward();
  absl::Status Unshard(int unit, bool full_precision);
  // Makes the unit readable in full: each rank copies its shard, once a step and only if asked to.
  absl::Status PublishFullPrecision(int unit);
  // Gathers what the record says comes next, so that the trainer will not wait for it.
  absl::Status GatherAhead();
  // The trainer may no longer read without waiting what was gathered ahead, for it gets old.
  void ForgetGathered();
  absl::Status Reshard(const Op& op);
  // Before the unit's slot is filled. Errors: FailedPrecondition  a window on another unit has it.
  absl::Status TakeSlot(int unit);
  void DropAhead(int unit);
  absl::Status Reduce(const Op& op);
  // Of a rank on a device: until what was put into its slot there is complete; ...
  absl::Status AwaitGradient(const Op& op, DType dtype);
  // ... or the trainer's slot, in memory of the host, to where reductions read.
  absl::Status BringToDevice(int unit, DType dtype);
  // `number` is the reduction's in the flight record.
  void ReduceOnStream(const Op& op, DType dtype, bool accumulate, int64_t number);
  absl::Status ReduceOnce(int unit, DType dtype, bool accumulate);
  absl::Status AwaitHold();  // Before the next step is staged or voted for: see state_hold.h.
  // Fills the rank's shard with the mean of what the ranks have in their slots; or with zeroes.
  absl::Status ReduceMapped(int unit, DType dtype, bool accumulate);
  absl::Status FakeReduction(int unit);
  // With config.optimizer_in_backward: rank_engine_early.cc.
  absl::Status AnnounceStep(const Op& op);
  // On the stream, after the reduction of the unit.
  void UpdateEarly(int unit, std::vector<int64_t> updates, std::vector<HyperParameters> groups,
                   int64_t number);
  // By parameter of the unit: which update the step will make of it, by what is known here.
  std::vector<int64_t> AssumedUpdates(int unit) const;
  // Which units were updated with just these numbers, so that publishing is all that is left.
  std::vector<bool> EarlyUnits(const OptimizerStep& step) const;
  absl::Status KeepLowPrecision(int unit, DType dtype);  // If the job rounds reduced gradients.
  absl::Status Initialize(int unit);
  absl::Status FinishInitialize();
  absl::Status RunStep(const Op& op);
  // Votes, and says what a step would do, for trainers that update the parameters themselves.
  absl::Status TallyGradients(const Op& op);
  // Both: vote on what was reduced, with the step's numbers.
  absl::StatusOr<Tally> CountVotes(const Op& op, const std::vector<HyperParameters>& groups,
                                   const ClipRule& clip, uint64_t put);
  // This rank's part of the vote on `step`: the measure of what was reduced.
  absl::StatusOr<Vote> VoteFor(int64_t step, double norm_p);
  // Of all reduced gradients, for norms that are not measured in the reduction.
  absl::StatusOr<double> NormPart(double p);
  // Among ranks that have each of the unit's slices once.
  Communicator& Holders(int unit) const;
  bool IsReplica(int unit) const {
    return options_.layout->units[unit].shards.IsReplica(options_.rank);
  }
  bool OnDevice() const { return options_.device_gradients != nullptr; }
  // In the group page.
  int LocalIndex() const { return options_.topology->LocalIndex(options_.rank.value()); }
  // The unit's, of the rank's shard, in the full dtype; and the measure of all its elements.
  std::byte* ReducedGradient(int unit) const;
  Values ReducedValues(int unit) const;
  absl::Status MeasureReduced(int unit, RankKernels* kernels);
  DType FullDTypeOf(int unit) const { return options_.memory->units()[unit].full_dtype; }
  int64_t FullBytes(int unit, int64_t elements) const {
    return elements * SizeBytes(FullDTypeOf(unit));
  }
  // Of what kRead and its like read: the rank's shard of it.
  absl::StatusOr<const std::byte*> ShardToRead(const Op& op, bool gradient) const;
  // Whole parameters, moments and gradients, by way of the unit's gradient slot.
  absl::Status Read(const Op& op);
  absl::Status Exchange(OpKind kind, int unit);
  // The rank's own shard, into its place in the unit's gradient slot.
  absl::Status ReadShard(const Op& op);
  absl::Status Write(const Op& op);
  absl::Status WriteGradient(int unit);
  absl::Status FinishWrite(const Op& op);
  // By unit: the arrays of its state that were staged, a bit each.
  using StagedArrays = std::vector<uint32_t>;
  // What is staged of all units becomes a version of the state; with `loaded`, moments too.
  absl::Status CommitStaged(OpKind kind, int64_t number, const StagedArrays& written,
                            const std::optional<TrainingProgress>& loaded);
  // Of others than the trainers, at the end of a step: rank_engine_put.cc. What this rank offers
  // in its vote; then takes it, if all offered the same.
  uint64_t OfferPut();
  absl::Status TakePut(uint64_t offered, uint64_t agreed);
  // Puts it into the version to come, with what it leaves as it is.
  absl::Status StagePut(int64_t next, std::optional<TrainingProgress>* loaded);
  // A step or a write is complete: continues from `next`.
  void CommitStep(int64_t next);
  void CommitWrite(int64_t next);
  absl::Status FinishStaged(int64_t next, const StagedArrays& written, bool is_step);
  std::byte* OwnSlot(int unit) const;
  // The trainer may use the unit's gradient slot again.
  void ReleaseSlot(int unit);
  // Files, and messages that are longer than an operation: rank_engine_files.cc.
  absl::Status Save();
  absl::Status Load();
  // The trainer may open nothing without asking; what was gathered ahead stays.
  void CloseGathered();
  // What a load published that the ranks did not agree to have, on this host.
  absl::Status TakeBackPublished();
  absl::Status Send(const Op& op);
  void Receive();
  void Tell(OpKind kind);  // What this rank knows by itself.
  // The message that was sent; there is none then.
  std::string TakeRequest();
  void Reply(std::string reply);
  // Synchronises the stream; the first error of its work.
  absl::Status AwaitReductions();
  absl::Status AwaitPeersAt(int64_t step);
  // Ends the engine's waits, so that it looks at the two statuses below: at once where it waits for
  // operations, within a slice of WaitUntil elsewhere.
  void Interrupt();
  // Where a peer's failure ended Run(): the worker's reason for ending the epoch, which is the same
  // on every rank. `status` where it does not come.
  absl::Status AwaitReason(const absl::Status& status) const;
  // Why to stop: Stop()'s reason or the stream's failure.
  absl::Status Interruption() const;
  absl::Status CheckUnit(int unit) const;
  const std::string& UnitName(int unit) const {
    return options_.layout->units[unit].flat.unit_name();
  }
  absl::Status ApplyDecided(int64_t step);
  // Where files and puts find and write the segment's elements of version step % 2.
  Values Addressable(StateImage* image, StateArray array, const ShardSegment& segment,
                     int64_t step) const;
  // Before files write a version to come, or the job's first one.
  // `outcome`: that this rank has no memory for it.
  absl::Status BeginStaging(bool first, absl::Status* outcome);
  // Memory for the image; want of it is `outcome`, and no error.
  absl::Status Reserve(StateImage* image, absl::Status* outcome);
  StateImage* staged_image() const {
    return options_.images == nullptr ? nullptr : &options_.images->staged;
  }
  void PublishResult(const absl::Status& status, double gradient_norm, bool non_finite = false);
  void ForgetReduced(int unit = -1);  // -1: of all units.

  const Options options_;
  ShardedOptimizer optimizer_;
  ShardWatch watch_;
  RemoteSlices remote_;
  SlotTable slots_;
  OrderTracker order_;
  int64_t step_ = 0;  // Committed on this rank.
  bool trainer_failed_ = false;
  GatherLimit gather_limit_;
  std::vector<int> upcoming_;  // Of GatherAhead; kept so that steady steps allocate nothing.
  std::vector<UnitState> unit_states_;
  std::vector<bool> reduced_;  // Since the last step, by unit.
  StagedArrays staged_;        // For the write under way.
  std::string request_;        // What was sent of it.
  std::string reply_;          // Of the last operation that has one, from reply_offset_ on.
  size_t reply_offset_ = 0;
  // By unit: of which step it is readable in full precision; -1: none.
  std::vector<int64_t> full_precision_at_;
  // With which the values under way will be the job's first.
  TrainingProgress initial_progress_;
  int64_t published_ahead_ = -1;  // The version that a load has published undecided; -1: none.
  std::vector<std::vector<ElementRange>> slices_;         // By unit: of each rank.
  std::vector<std::vector<ElementRange>> reduced_parts_;  // By unit: see layout/reduced_parts.h.
  std::vector<HyperParameters> assumed_groups_;           // Of the step under way.
  // By unit: as UpdateEarly had them; empty: the unit was not updated. Written on the stream.
  std::vector<std::vector<int64_t>> early_updates_;
  std::vector<std::vector<HyperParameters>> early_groups_;
  // Of each unit's reduced gradient; written on the stream, read after AwaitReductions().
  std::vector<host::GradientStats> stats_;

  std::atomic<int> on_stream_{0};  // Reductions that are not through.
  std::atomic<bool> left_{false};
  // 1 once Stop() was called or the stream's work failed: the engine's waits look up.
  std::atomic<uint32_t> interrupt_{0};
  mutable absl::Mutex mu_;
  absl::Status stop_reason_ ABSL_GUARDED_BY(mu_);
  absl::Status stream_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_RANK_ENGINE_H_
