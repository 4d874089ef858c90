// A trainer's hold on its rank: parameters when it needs them, gradients when it has them, steps.
//
//   auto session = Session::Open(options);                    attach; memory is mapped, not copied
//   session->Unshard(u); ... read session->parameters(u) ... session->Reshard(u);
//   session->AddGradient(u, p, values); ... session->Reduce(u);
//   session->Step(scale);                                     committed on all ranks or on none
//
// In steady state none of these makes an RPC or copies parameters; an operation is a cache line in
// a shared ring and a futex wake (and, with guard_windows, a change of page protection). A unit's
// parameters are at one address for the life of the session.
//
// When any rank fails, every pending and later call returns Aborted with the cause: the step was
// undone everywhere. Recover() waits for the next epoch; then the trainer does step next_step()
// again. RunStep() does this by itself. Where an Unshard is the first operation of a step, there is
// nothing to undo: it recovers by itself and goes on, unless the process has another job's session.
// An error of the trainer's own code, told by Fail() or returned by RunStep()'s body, is every
// rank's error, with its code, its cause and the rank.
//
// Thread-compatible: one thread at a time. Destroying it detaches. Only the process that opened it
// can use it: in forked children all operations are FailedPrecondition. Source:
// torch/distributed/fsdp.
#ifndef TESSERA_SESSION_H_
#define TESSERA_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/dtype.h"
#include "layout/model_layout.h"
#include "layout/values.h"
#include "tessera/session_options.h"

namespace tessera {

struct SessionState;

class Session {
 public:
  // Creates the job if no other rank has, and attaches.
  // Errors: InvalidArgument     the model or config is invalid, or differs from another rank's (the
  //                             message names both ranks and the parameter or field)
  //         AlreadyExists       the rank is attached to another trainer
  //         FailedPrecondition  wrong world size or layout; the coordinator is on another machine
  //                             without TLS files or insecure_connect; the GPU needs host_executor
  //         DataLoss            the job's shards went with the memory of a worker
  //         DeadlineExceeded    coordinator, worker or devices did not come in time
  static absl::StatusOr<std::unique_ptr<Session>> Open(const SessionOptions& options);
  ~Session();

  const ModelLayout& layout() const;
  const JobConfig& config() const;
  int rank() const;
  int num_units() const;
  // Whether the rank's executor runs in this process; once it has ended, one of the worker's does.
  bool hosts_executor() const;
  int64_t next_step() const;  // To continue with: 1 + the last committed one.
  // How often WriteParameters has been committed in the job's life; steps and puts do not count.
  // Tells a trainer that replaces another whether a write that both would make is done already.
  int64_t num_writes() const;

  // --- Initial values: once in a job's life, by all ranks ---
  bool initialized() const;
  // `fill(unit, parameter, values)` writes each original parameter's elements, in the full dtype.
  // Errors: FailedPrecondition  initialised already; Aborted.
  using Filler = std::function<void(int unit, int parameter, Values values)>;
  absl::Status Initialize(const Filler& fill);

  // --- Parameters ---
  // Collective: all ranks ask for the same units in the same order and precision.
  // Errors of all: FailedPrecondition  naming the unit: it is already (not) unsharded, or another
  // one has its slot of the GPU (see parameter_plan.h); Aborted; of Unshard also those of Recover.
  absl::Status Unshard(int unit, Precision precision = Precision::kCompute);
  // Starts it; Unshard() then waits, in this precision.
  absl::Status UnshardAsync(int unit, Precision precision = Precision::kCompute);
  absl::Status Reshard(int unit);
  // Ends a forward that no backward follows, on all ranks. If it repeats the previous forward, the
  // following ones are compared with it: evaluation that calls this asks the coordinator no more
  // often than training does, however long it is.
  absl::Status EndForward();
  bool unsharded(int unit) const;
  bool closed(int unit) const;
  // Whether Unshard would return without waiting for anybody: executors gather ahead of their
  // trainers, up to config.max_gathered_units units in the order of the step before.
  bool gathered(int unit) const;
  // The unit's flat parameter in the compute dtype; readable while unsharded.
  const std::byte* parameters(int unit) const;
  // One original parameter of it.
  const std::byte* parameter(int unit, int parameter) const;
  // The same in the full dtype; readable while unsharded in full precision.
  const std::byte* full_parameter(int unit, int parameter) const;
  // Of the unit's shards, whole parameters and gradients: fp32, or fp64 if its parameters are.
  DType full_dtype(int unit) const;
  // In which the unit is unsharded, or was last.
  Precision precision(int unit) const;

  // --- Whole parameters in full precision ---
  // Collective: all ranks call these for the same units in the same order, outside of a step's
  // accumulation. Errors: FailedPrecondition  no initial values; the unit's gradient slot holds a
  // gradient that is not reduced, or ranks write different units; Aborted.
  using Reader = std::function<void(int parameter, ConstValues values)>;
  absl::Status ReadParameters(int unit, const Reader& read);
  // Sets what `fill` writes over zeroes; each rank's own slice counts. On all ranks or on none:
  // after Aborted, num_writes() tells which, once Recover() returned. Closes windows in full
  // precision, which would otherwise keep showing the old values. Moments, step numbers and
  // reduced gradients stay, and a step that is undone later does not undo it (docs/adr/0015).
  absl::Status WriteParameters(const std::vector<int>& units, const Filler& fill);
  // The reduced gradient, a mean, since the last step: of parameters that this rank gave one.
  // Without the effect of ClipGradNorm, which is applied in the step.
  absl::Status ReadGradients(int unit, const Reader& read);
  // Sets it: `fill` finds it, zeroes where there is none, and whether this rank gave any; it
  // returns whether the parameter has one. Each rank's own slice counts.
  using GradientFiller = std::function<bool(int parameter, bool has, Values values)>;
  absl::Status WriteGradients(int unit, const GradientFiller& fill);

  // --- Gradients ---
  // Adds `values` (a parameter's whole gradient, in the full dtype) to what the unit has since its
  // last Reduce. Copies; waits while the unit's slot is still being reduced. Travels in the unit's
  // reduce dtype, or in the full one where it was last unsharded in full precision.
  // Errors: InvalidArgument     wrong size or dtype, or a parameter that needs no gradient
  //         FailedPrecondition  the slot holds another unit's unreduced gradient (accumulating
  //                             without reducing needs config.gradient_slots = 0), or the step's
  //                             gradient was clipped already; Aborted.
  absl::Status AddGradient(int unit, int parameter, ConstValues values);
  // Averages the unit's gradient over the ranks. A rank whose parameter got none counts as zero. A
  // parameter that got none on any rank before the step stays as it is, and so do its moments.
  // Called again before the step, it adds to what was reduced.
  // Errors: FailedPrecondition  called again, with cpu_offload; Aborted.
  absl::Status Reduce(int unit);
  // Between steps; of all units, or of one. See CommHook (session_options.h).
  // Errors: AlreadyExists       a unit has one (named; nothing is registered then)
  //         InvalidArgument     the hook does nothing, or compresses to a dtype that is not a
  //                             training dtype
  //         FailedPrecondition  within a step.
  absl::Status RegisterCommHook(CommHook hook);
  absl::Status RegisterCommHook(int unit, CommHook hook);
  // Makes the gradient of the step under way no longer than `max_norm`, above 0, by the p-norm, on
  // all ranks, and returns its norm before. Reduces what was not. The norm is that of the gradient
  // that the step would take with these `options`: give both the same. An infinite `max_norm` only
  // measures. A second call measures and clips what the first one has clipped. The step that follows
  // also applies config.max_gradient_norm.
  // Errors: InvalidArgument     a number is out of range, or ranks disagree on one
  //         FailedPrecondition  NaN or Inf in some rank's gradient, or a norm beyond a double: the
  //                             gradients are dropped; config.optimizer_in_backward. With
  //                             skip_non_finite NaN or Inf is not an error: the norm is NaN, and
  //                             the step is skipped
  //         Aborted.
  absl::StatusOr<double> ClipGradNorm(double max_norm, double p = 2.0,
                                      const StepOptions& options = {});
  bool has_gradient(int unit) const;
  bool reduced(int unit) const;
  // The other unit, if any, whose gradient, started and not reduced, occupies this one's slot.
  std::optional<int> HolderOfSlot(int unit) const;
  // Whether some unit has a gradient since the last step, reduced or not.
  bool within_step() const;

  // --- For people who watch ---
  // Shows these numbers as the rank's ("loss"), instead of those that it reported before: in
  // GetJob, and in `tessera status`. Costs a message to the worker; nobody waits.
  // Errors: InvalidArgument  more than 32, or a name that is not of [A-Za-z0-9._/-]{1,64}
  absl::Status Report(const std::map<std::string, double>& values);

  // --- Steps ---
  // Reshards what is unsharded and reduces what was not, then votes and updates.
  // Errors: FailedPrecondition  NaN or Inf in some rank's gradient: nothing was changed, the
  //                             gradients are dropped; InvalidArgument  a number is out of range
  //                             (named), or ranks disagree on one.
  absl::StatusOr<StepResult> Step(const StepOptions& options);
  // With config.optimizer_in_backward: the numbers that Step will have, before the first Reduce.
  // If Step gets other numbers, or none were announced and Step's differ from the previous step's,
  // the update runs after backward as without this option. Errors: as Step.
  absl::Status AnnounceStep(const StepOptions& options);
  absl::StatusOr<StepResult> Step(double learning_rate_scale = 1.0);
  absl::Status DropGradients();
  // Of one unit: all that this rank added since the last step, and its part of what was reduced.
  // All ranks drop the same.
  absl::Status DropGradients(int unit);
  // Writes the model; collective. `path` is on a file system that all workers share.
  absl::Status Save(const std::string& path);
  // Ends the epoch since this rank cannot do its part: undoes the step everywhere and gives every
  // other rank this error, with "rank R: " before its message. Aborted is no error: the step is
  // undone, as if a process of the job had died. Other codes that mean something else to them (OK,
  // Cancelled, DeadlineExceeded, Unavailable) arrive as Unknown. Recover() next.
  absl::Status Fail(const absl::Status& cause);
  // Where the epoch has failed, waits for the next one. Errors: DeadlineExceeded  there is none for
  // recover_timeout, or for operation_timeout each failed, and no step or write was completed: the
  // message names ranks that are missing; Unavailable  the worker is gone; Cancelled  the job was
  // deleted or moves; FailedPrecondition  see host_executor and restart_required.
  absl::Status Recover();
  // Whether calls fail because the ranks are at different places of their programs after a process
  // of the job died (FailedPrecondition names two, and what they were about to do), so that all
  // programs have to be started again: exit with status 75, and `tessera run` does that. The state
  // of the last step stays.
  bool restart_required() const;
  // Runs `step_body` (forward, backward, Step) and, while the step is undone since some process
  // died, recovers and runs it again, unless it had been decided: then it is complete, and this
  // returns OK. So a body may use the step number that it was given, and no step is lost or applied
  // twice. Each repetition is logged. An error of Recover() ends them.
  // Any other error of the body, or an exception, is told to all ranks by Fail(), unless they have
  // it already. RunStep returns it on every rank, and the step was undone. The next RunStep may
  // follow.
  // Gradients of a body that returns OK without a step, on all ranks, are dropped.
  absl::Status RunStep(const std::function<absl::Status()>& step_body);

  // For this folder: what its classes work on.
  SessionState& state() const { return *state_; }

 private:
  explicit Session(SessionOptions options);

  const std::unique_ptr<SessionState> state_;
};

}  // namespace tessera

#endif  // TESSERA_SESSION_H_
