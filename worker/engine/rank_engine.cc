#include "worker/engine/rank_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// Those whose end the trainer sees by what was consumed.
bool IsAwaitedThroughTheRing(OpKind kind) {
  return kind == OpKind::kDropGradients || kind == OpKind::kAnnounceStep || kind == OpKind::kSend ||
         kind == OpKind::kReceive || kind == OpKind::kRestoreBuffers;
}

// What the trainer asks every rank's trainer to be told. Codes that mean something else to them
// become Unknown. Aborted ends the epoch and not the training, as a deadline does.
absl::Status TrainersError(const Op& op, const ControlPage& control) {
  auto code = static_cast<absl::StatusCode>(op.status_code);
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss:
      break;
    case absl::StatusCode::kAborted:
      code = absl::StatusCode::kDeadlineExceeded;
      break;
    default:
      code = absl::StatusCode::kUnknown;
  }
  return absl::Status(code, LoadText(control.text, kMaxTextBytes));
}

}  // namespace

RankEngine::RankEngine(Options options)
    : context_(std::move(options)),
      // Parts that others point to are made first, and destroyed last.
      early_(&context_),
      reductions_(&context_, &early_),
      gathers_(&context_, &reductions_),
      versions_(&context_, &early_),
      puts_(&context_, &versions_, &gathers_),
      parts_{context_, early_, reductions_, gathers_, versions_, puts_},
      steps_(parts_),
      writes_(parts_),
      reads_(&context_, &reductions_, &gathers_, !versions_.saved().is_copy()),
      files_(parts_, &writes_) {}

absl::Status RankEngine::Reach(Step resume_step) { return versions_.Reach(resume_step); }

absl::Status RankEngine::Start(Step resume_step) {
  const RankEngineOptions& options = context_.options;
  ControlPage* control = options.control;
  // A decided step that this rank has not applied is applied first.
  RETURN_IF_ERROR(versions_.Reach(resume_step));
  RETURN_IF_ERROR(versions_.PublishIfNot(resume_step.value()));
  options.buffers->DropLoaded();  // Of a load or put that nobody decided.
  // What the trainer reads without asking is reset before it sees the new epoch.
  gathers_.Start();
  control->result.count.store(0);
  // Operations of older epochs are void, from any trainer.
  control->consumed.store(control->submitted.value.load());
  // From the group's word: the trainer can write to its control page.
  control->initialized.store(options.group->initialized.load(std::memory_order_acquire));
  context_.order.Start(resume_step.value());
  control->progress_kind.store(0);
  // Last: from here on the trainer submits for this epoch.
  control->epoch.store(static_cast<uint32_t>(options.epoch.value()), std::memory_order_release);
  Bump(&control->events);
  return absl::OkStatus();
}

void RankEngine::Stop(const absl::Status& reason) {
  context_.interrupt.Stop(reason);
  // Waits inside collectives do not look at the interrupt.
  AbortCommunicators(reason);
}

void RankEngine::AbortCommunicators(const absl::Status& reason) {
  const RankEngineOptions& options = context_.options;
  // All rows: the engine's thread and the stream may each wait in another one.
  for (Communicator* communicator : {options.communicator, options.gatherer, options.host})
    communicator->Abort(reason);
}

bool RankEngine::Leave() {
  const ControlPage& control = *context_.options.control;
  // Operations that were submitted or are on the stream belong to a step that must not be lost.
  if (control.consumed.load() != control.submitted.value.load() || reductions_.is_under_way())
    return false;
  return context_.interrupt.Leave();
}

absl::Status RankEngine::Run() {
  const RankEngineOptions& options = context_.options;
  ControlPage* control = options.control;
  absl::Status status;
  while (status.ok()) {
    // In each round, since a wait for operations ends when the interrupt is raised.
    status = context_.interrupt.Check();
    if (!status.ok()) break;
    const uint32_t submitted = control->submitted.value.load(std::memory_order_acquire);
    // Relaxed: only this thread advances it.
    const uint32_t consumed = control->consumed.load(std::memory_order_relaxed);
    if (submitted == consumed) {
      const int64_t from_ns = MonotonicNanos();
      AwaitSubmission(submitted);
      options.recorder->WaitedForTrainer(MonotonicNanos() - from_ns);
      continue;
    }
    // A copy: the trainer may write to the ring at any time, and the checks are of what is used.
    const Op op = control->ring[consumed % kRingOps];
    // One of an older epoch is consumed and has no effect.
    if (op.epoch == options.epoch.value()) {
      files_.Note(op.kind);
      status = Execute(op);
    }
    control->progress_kind.store(0, std::memory_order_relaxed);
    // Release: a trainer that sees the operation consumed sees its piece of a reply.
    control->consumed.store(consumed + 1, std::memory_order_release);
    // Nothing else wakes this one: a trainer that waits for room, or for these to be through. It
    // may have filled the ring while the operation ran.
    const uint32_t filled = control->submitted.value.load(std::memory_order_acquire) - consumed;
    if (IsAwaitedThroughTheRing(op.kind) || filled >= kRingOps) Bump(&control->events);
  }
  // Reports that were kept back to travel together.
  options.gate->SendReports();
  return End(std::move(status));
}

absl::Status RankEngine::End(absl::Status status) {
  const RankEngineOptions& options = context_.options;
  if (context_.interrupt.has_left()) {
    options.post_backward->Synchronize();  // Updates that no reduction waits for.
    return status;
  }
  // Peers of this host that wait for this rank need not wait for the worker's word.
  options.communicator->Abort(status);
  options.gatherer->Abort(status);
  context_.interrupt.Raise();  // A reduction may wait for the trainer's GPU.
  options.post_backward->Synchronize();
  // Kernels write to memory that the next executor uses: none may be under way once the rank is
  // quiet.
  const absl::Status device = options.kernels->Finish();
  if (!device.ok() && !trainer_failed_) {
    // The device is the cause, whatever the wait returned (docs/adr/0040).
    // As where the executor dies, which it will: the next one has a device that works.
    status =
        absl::AbortedError(absl::StrCat("rank ", options.rank.value(), ": ", device.message()));
  } else if (absl::IsAborted(status) || absl::IsUnavailable(status)) {
    // Unavailable: a peer's connection was lost; its own worker may know why.
    status = context_.interrupt.AwaitReason(status);
  }
  // A deadline ends the epoch, not the training: for the trainer it is a step to try again.
  // Once the stream and the device are quiet: from here on the trainer may write to what they
  // read.
  PublishFailure(options.control, options.epoch.value(),
                 absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)
                     ? absl::AbortedError(status.message())
                     : status);
  return status;
}

void RankEngine::AwaitSubmission(uint32_t submitted) {
  const auto await = [&](absl::Time deadline) {
    return WaitUntil(
        &context_.options.control->submitted,
        [submitted](uint32_t now) { return now != submitted; },
        AbortFlag(context_.interrupt.flag()), deadline);
  };
  OrderGate* gate = context_.options.gate;
  // Reports wait for each other only as long as the trainer keeps this thread busy.
  if (gate->keeps_reports_back()) {
    if (await(SteadyNow() + OrderGate::kLongestReportDelay).ok()) return;
    gate->SendReports();
  }
  // It ends with a submission or when the interrupt is raised, which the caller looks for.
  (void)await(absl::InfiniteFuture());
}

absl::Status RankEngine::Execute(const Op& op) {
  ControlPage* control = context_.options.control;
  control->progress_unit.store(op.unit, std::memory_order_relaxed);
  control->progress_kind.store(static_cast<uint32_t>(op.kind), std::memory_order_relaxed);
  RETURN_IF_ERROR(FaultPoint("engine.operation"));
  switch (op.kind) {
    case OpKind::kUnshard:
      return gathers_.Unshard(op.unit, op.full_precision != 0);
    case OpKind::kReshard:
      return gathers_.Reshard(op);
    case OpKind::kEndForward:
      return gathers_.EndForward();
    case OpKind::kReduce:
      return reductions_.Reduce(op);
    case OpKind::kDropGradients:
      return DropGradients(op.unit);
    case OpKind::kStep:
      return steps_.Run(op);
    case OpKind::kTally:
      return steps_.TallyGradients(op);
    case OpKind::kAnnounceStep:
      return early_.Announce(op);
    case OpKind::kInitialize:
      return writes_.Initialize(op.unit);
    case OpKind::kFinishInitialize:
      return writes_.FinishInitialize();
    case OpKind::kWrite:
      return writes_.Write(op);
    case OpKind::kWriteGradient:
      return writes_.WriteGradient(op.unit);
    case OpKind::kFinishWrite:
    case OpKind::kFinishTrainersStep:
      return writes_.FinishWrite(op);
    case OpKind::kRead:
    case OpKind::kReadGradient:
      return reads_.Read(op);
    case OpKind::kReadShard:
    case OpKind::kReadGradientShard:
      return reads_.ReadShard(op);
    case OpKind::kBroadcast:
    case OpKind::kExchange:
      return reads_.Exchange(op);
    case OpKind::kSave:
      return files_.Save();
    case OpKind::kLoad:
      return files_.Load();
    case OpKind::kReadProgress:
    case OpKind::kSaveStatus:
    case OpKind::kCancelSave:
      files_.Tell(op.kind);
      return absl::OkStatus();
    case OpKind::kSend:
      return context_.trainer.Append(op);
    case OpKind::kReceive:
      context_.trainer.SendPiece();
      return absl::OkStatus();
    case OpKind::kRestoreBuffers:
      context_.options.buffers->Restore(context_.order.step());
      return absl::OkStatus();
    case OpKind::kFail:
      // The others' trainers get its code as well (docs/architecture/failure.md), if it is an error.
      trainer_failed_ = op.status_code != static_cast<int>(absl::StatusCode::kAborted);
      return TrainersError(op, *control);
    case OpKind::kUpdate:
    case OpKind::kPut:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", context_.options.rank.value(), ": unknown ", OpName(op.kind)));
}

absl::Status RankEngine::DropGradients(int unit) {
  // A reduction that is still on the stream would set again what is forgotten here.
  RETURN_IF_ERROR(reductions_.Await());
  if (unit < 0) {
    reductions_.ForgetAll();
    versions_.ForgetStaged();
  } else if (unit < context_.num_units()) {
    reductions_.Forget(unit);
    versions_.staged()[unit] = 0;
  }
  return absl::OkStatus();
}

}  // namespace tessera
