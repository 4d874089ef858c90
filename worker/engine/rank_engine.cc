#include "worker/engine/rank_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "layout/reduced_parts.h"

namespace tessera {
namespace {

// Between the end of a peer's epoch and the worker's word about it.
constexpr absl::Duration kReasonTimeout = absl::Seconds(5);

// Those whose end the trainer sees by what was consumed.
bool IsAwaitedThroughTheRing(OpKind kind) {
  return kind == OpKind::kDropGradients || kind == OpKind::kAnnounceStep || kind == OpKind::kSend ||
         kind == OpKind::kReceive || kind == OpKind::kRestoreBuffers;
}

// What the trainer asks every rank's trainer to be told. Codes that mean something else to them
// become Unknown.
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
    default:
      code = absl::StatusCode::kUnknown;
  }
  return absl::Status(code, LoadText(control.text, kMaxTextBytes));
}

}  // namespace

RankEngine::RankEngine(Options options)
    : options_(std::move(options)),
      optimizer_(*options_.config, *options_.memory,
                 SegmentsOf(*options_.layout, *options_.config, *options_.memory, options_.rank),
                 options_.state, options_.parameters, options_.kernels),
      watch_(options_.layout, options_.config, options_.memory, options_.state,
             &options_.group->ranks[options_.topology->LocalIndex(options_.rank.value())]
                  .changed_shard),
      remote_({options_.layout, options_.config, options_.memory, options_.topology, options_.rank,
               options_.epoch, &options_.parameters, options_.kernels, options_.group->windows,
               options_.gatherer, options_.device_gradients == nullptr}),
      slots_(options_.slots),
      unit_states_(options_.layout->units.size(), UnitState::kSharded),
      reduced_(options_.layout->units.size(), false),
      staged_(options_.layout->units.size(), 0),
      full_precision_at_(options_.layout->units.size(), -1),
      initial_progress_({0,
                         std::vector<int64_t>(options_.memory->num_parameters(), 0),
                         {options_.config->groups.begin(), options_.config->groups.end()}}),
      assumed_groups_(options_.config->groups.begin(), options_.config->groups.end()),
      early_updates_(options_.layout->units.size()),
      early_groups_(options_.layout->units.size()),
      stats_(options_.layout->units.size()) {
  gather_limit_.max_units = options_.config->max_gathered_units;
  gather_limit_.max_bytes = options_.config->max_gathered_bytes;
  for (size_t unit = 0; unit < unit_states_.size(); ++unit) {
    gather_limit_.unit_bytes.push_back(options_.layout->units[unit].shards.padded_numel() *
                                       SizeBytes(options_.memory->units()[unit].compute_dtype));
  }
  for (const UnitLayout& unit : options_.layout->units) {
    reduced_parts_.push_back(ReducedParts(unit));
    std::vector<ElementRange>& slices = slices_.emplace_back();
    for (int rank = 0; rank < options_.config->world_size; ++rank) {
      slices.push_back(unit.shards.RangeOf(Rank(rank)));
    }
  }
}

absl::Status RankEngine::Reach(Step resume_step) {
  GroupPage* group = options_.group;
  const RankRecord& record = group->ranks[LocalIndex()];
  const int64_t applied = record.applied_step.load(std::memory_order_acquire);
  if (applied + 1 == resume_step.value() &&
      group->decided_step.load(std::memory_order_acquire) == resume_step.value()) {
    RETURN_IF_ERROR(ApplyDecided(resume_step.value()));
  } else if (applied != resume_step.value()) {
    return absl::InternalError(absl::StrCat("rank ", options_.rank.value(), " holds step ", applied,
                                            " and cannot resume at step ", resume_step.value()));
  }
  return absl::OkStatus();
}

absl::Status RankEngine::Start(Step resume_step) {
  RETURN_IF_ERROR(Reach(resume_step));
  GroupPage* group = options_.group;
  ControlPage* control = options_.control;
  step_ = resume_step.value();
  // Not published: the predecessor died in a load, or while publishing.
  if ((options_.publishes_anew || !IsPublished(*group, LocalIndex())) &&
      group->initialized.load(std::memory_order_acquire) != 0) {
    optimizer_.Publish(step_);
    RETURN_IF_ERROR(options_.kernels->Finish());
    PublishApplied(group, LocalIndex(), step_);
  }
  if (options_.buffers != nullptr)
    options_.buffers->DropLoaded();  // Of a load or put that nobody decided.
  for (size_t unit = 0; unit < unit_states_.size(); ++unit) {
    control->units[unit].state.store(static_cast<uint32_t>(UnitState::kSharded));
    control->units[unit].reduced.store(0);
    control->units[unit].unsharded.store(0);
    control->units[unit].gathered_for_step.store(0);
    control->units[unit].gathered_window.store(0);
  }
  control->result.count.store(0);
  // Operations of older epochs are void, from any trainer.
  control->consumed.store(control->submitted.value.load());
  control->initialized.store(group->initialized.load(std::memory_order_acquire));
  control->committed_step.store(step_);
  control->writes.store(group->decisions[step_ % 2].writes.load(std::memory_order_relaxed));
  const int64_t trained_step = group->decisions[step_ % 2].trained_step.load();
  control->trained_step.store(control->initialized.load() != 0 ? trained_step : 0);
  PublishProgress(OrderStep());
  control->within_step.store(0);
  control->progress_kind.store(0);
  control->epoch.store(static_cast<uint32_t>(options_.epoch.value()), std::memory_order_release);
  Bump(&control->events);
  return absl::OkStatus();
}

void RankEngine::Stop(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (stop_reason_.ok()) stop_reason_ = reason;
  }
  Interrupt();
  options_.communicator->Abort(reason);
  if (options_.gatherer != nullptr) options_.gatherer->Abort(reason);
  if (options_.host != nullptr) options_.host->Abort(reason);
}

bool RankEngine::Leave() {
  const ControlPage& control = *options_.control;
  if (control.consumed.load() != control.submitted.value.load() || on_stream_.load() != 0)
    return false;
  {
    absl::MutexLock lock(&mu_);
    if (!stop_reason_.ok() || !stream_status_.ok()) return false;
    stop_reason_ = absl::AbortedError("the executor left");
    left_.store(true);
  }
  Interrupt();
  return true;
}

Communicator& RankEngine::Holders(int unit) const {
  const bool one_host = options_.topology->num_hosts() == 1;
  return one_host || remote_.Spans(unit) ? *options_.communicator : *options_.host;
}

void RankEngine::Interrupt() {
  interrupt_.store(1, std::memory_order_release);
  WakeAll(options_.control->submitted.value);
}

absl::Status RankEngine::Interruption() const {
  if (interrupt_.load(std::memory_order_acquire) == 0) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return stop_reason_.ok() ? stream_status_ : stop_reason_;
}

absl::Status RankEngine::Run() {
  ControlPage* control = options_.control;
  absl::Status status;
  while (status.ok()) {
    status = Interruption();
    if (!status.ok()) break;
    const uint32_t submitted = control->submitted.value.load(std::memory_order_acquire);
    const uint32_t consumed = control->consumed.load(std::memory_order_relaxed);
    if (submitted == consumed) {
      AwaitSubmission(submitted);
      continue;
    }
    const Op op = control->ring[consumed % kRingOps];
    if (op.epoch == options_.epoch.value()) status = Execute(op);
    control->progress_kind.store(0, std::memory_order_relaxed);
    control->consumed.store(consumed + 1, std::memory_order_release);
    // Nothing else wakes this one: a trainer that waits for room, or for these to be through. It
    // may have filled the ring while the operation ran.
    const uint32_t filled = control->submitted.value.load(std::memory_order_acquire) - consumed;
    if (IsAwaitedThroughTheRing(op.kind) || filled >= kRingOps) Bump(&control->events);
  }
  options_.gate->SendReports();
  if (left_.load()) {
    options_.post_backward->Synchronize();  // Updates that no reduction waits for.
    return status;
  }
  // Peers of this host that wait for this rank need not wait for the worker's word.
  options_.communicator->Abort(status);
  if (options_.gatherer != nullptr) options_.gatherer->Abort(status);
  Interrupt();  // A reduction may wait for the trainer's GPU.
  options_.post_backward->Synchronize();
  const absl::Status device = options_.kernels->Finish();
  if (!device.ok() && !trainer_failed_) {
    // As where the executor dies, which it will: the next one has a device that works.
    status =
        absl::AbortedError(absl::StrCat("rank ", options_.rank.value(), ": ", device.message()));
  } else if (absl::IsAborted(status) || absl::IsUnavailable(status)) {
    // Unavailable: a peer's connection was lost; its own worker may know why.
    status = AwaitReason(status);
  }
  // A deadline ends the epoch, not the training: for the trainer it is a step to try again.
  PublishFailure(control, options_.epoch.value(),
                 absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)
                     ? absl::AbortedError(status.message())
                     : status);
  return status;
}

void RankEngine::AwaitSubmission(uint32_t submitted) {
  const auto await = [&](absl::Time deadline) {
    return WaitUntil(
        &options_.control->submitted, [submitted](uint32_t now) { return now != submitted; },
        AbortFlag(&interrupt_), deadline);
  };
  if (options_.gate->keeps_reports_back()) {
    if (await(SteadyNow() + OrderGate::kLongestReportDelay).ok()) return;
    options_.gate->SendReports();
  }
  (void)await(absl::InfiniteFuture());
}

absl::Status RankEngine::AwaitReason(const absl::Status& status) const {
  absl::MutexLock lock(&mu_);
  const auto told = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !stop_reason_.ok(); };
  return AwaitWithTimeout(&mu_, absl::Condition(&told), kReasonTimeout) ? stop_reason_ : status;
}

absl::Status RankEngine::Execute(const Op& op) {
  ControlPage* control = options_.control;
  control->progress_unit.store(op.unit, std::memory_order_relaxed);
  control->progress_kind.store(static_cast<uint32_t>(op.kind), std::memory_order_relaxed);
  RETURN_IF_ERROR(FaultPoint("engine.operation"));
  switch (op.kind) {
    case OpKind::kUnshard:
      return Unshard(op.unit, op.full_precision != 0);
    case OpKind::kReshard:
      return Reshard(op);
    case OpKind::kReduce:
      return Reduce(op);
    case OpKind::kInitialize:
      return Initialize(op.unit);
    case OpKind::kFinishInitialize:
      return FinishInitialize();
    case OpKind::kStep:
      return RunStep(op);
    case OpKind::kDropGradients:
      RETURN_IF_ERROR(AwaitReductions());
      ForgetReduced(op.unit);
      return absl::OkStatus();
    case OpKind::kSave:
      return Save();
    case OpKind::kLoad:
      return Load();
    case OpKind::kSend:
      return Send(op);
    case OpKind::kReceive:
      Receive();
      return absl::OkStatus();
    case OpKind::kReadProgress:
    case OpKind::kSaveStatus:
    case OpKind::kCancelSave:
      Tell(op.kind);
      return absl::OkStatus();
    case OpKind::kFail:
      trainer_failed_ = true;
      return TrainersError(op, *control);
    case OpKind::kRead:
    case OpKind::kReadGradient:
      return Read(op);
    case OpKind::kWrite:
      return Write(op);
    case OpKind::kWriteGradient:
      return WriteGradient(op.unit);
    case OpKind::kFinishWrite:
    case OpKind::kFinishTrainersStep:
      return FinishWrite(op);
    case OpKind::kBroadcast:
    case OpKind::kExchange:
      return Exchange(op.kind, op.unit);
    case OpKind::kEndForward:
      return EndForward();
    case OpKind::kReadShard:
    case OpKind::kReadGradientShard:
      return ReadShard(op);
    case OpKind::kTally:
      return TallyGradients(op);
    case OpKind::kAnnounceStep:
      return AnnounceStep(op);
    case OpKind::kRestoreBuffers:
      if (options_.buffers != nullptr) options_.buffers->Restore(step_);
      return absl::OkStatus();
    case OpKind::kUpdate:
    case OpKind::kPut:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", options_.rank.value(), ": unknown ", OpName(op.kind)));
}

absl::Status RankEngine::CheckUnit(int unit) const {
  if (unit >= 0 && unit < static_cast<int>(unit_states_.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", options_.rank.value(), ": no unit ", unit));
}

int64_t RankEngine::OrderStep() const {
  return options_.control->initialized.load(std::memory_order_relaxed) != 0 ? step_ + 1 : step_;
}

absl::Status RankEngine::Ordered(OpKind kind, int unit, int64_t count_elements, DType dtype) {
  const OrderEntry entry = {kind, unit, dtype, count_elements};
  if (order_.Check(entry) == OrderVerdict::kAsk) {
    RETURN_IF_ERROR(
        options_.gate->AwaitRelease(entry, {OrderStep(), order_.pass(), order_.sequence()}));
  }
  order_.Issued(entry);
  if (kind == OpKind::kUnshard || kind == OpKind::kReduce)
    options_.control->within_step.store(1, std::memory_order_relaxed);
  options_.control->progress_sequence.store(order_.sequence(), std::memory_order_relaxed);
  return absl::OkStatus();
}

void RankEngine::PublishProgress(int64_t step) {
  options_.control->progress_sequence.store(0, std::memory_order_relaxed);
  options_.control->progress_pass.store(order_.pass(), std::memory_order_release);
  options_.control->progress_step.store(step, std::memory_order_release);
}

absl::Status RankEngine::EndForward() {
  if (!order_.ForwardEnded()) return absl::OkStatus();
  RETURN_IF_ERROR(Ordered(OpKind::kEndForward, -1, 0, options_.config->compute_dtype));
  order_.PassEnded();
  PublishProgress(OrderStep());
  return GatherAhead();
}

absl::Status RankEngine::FinishInitialize() {
  const int64_t number =
      options_.recorder->Enqueued(OrderStep(), order_.sequence(), OpKind::kFinishInitialize, -1, 0);
  RETURN_IF_ERROR(Ordered(OpKind::kFinishInitialize, -1, 0, options_.config->compute_dtype));
  options_.recorder->Started(number);
  RecordInitialProgress(options_.group, options_.updates, initial_progress_);
  if (options_.buffers != nullptr) options_.buffers->Publish(0);
  RETURN_IF_ERROR(FaultPoint("initialize.before-barrier"));
  RETURN_IF_ERROR(options_.communicator->Barrier());
  RETURN_IF_ERROR(FaultPoint("initialize.after-barrier"));
  options_.recorder->Done(number);
  options_.control->trained_step.store(initial_progress_.step, std::memory_order_relaxed);
  options_.group->initialized.store(1, std::memory_order_release);
  options_.control->initialized.store(1, std::memory_order_release);
  order_.StepCommitted();
  PublishProgress(OrderStep());
  PublishResult(absl::OkStatus(), 0);
  return absl::OkStatus();
}

void RankEngine::PublishResult(const absl::Status& status, double gradient_norm, bool non_finite) {
  OpResult& result = options_.control->result;
  result.status_code = status.raw_code();
  result.gradient_norm = gradient_norm;
  result.non_finite = non_finite;
  StoreText(status.message(), result.message, kMaxErrorBytes);
  result.count.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
}

void RankEngine::ForgetReduced(int unit) {
  const int num_units = static_cast<int>(reduced_.size());
  const int begin = std::max(unit, 0), end = unit < 0 ? num_units : std::min(unit + 1, num_units);
  for (int u = begin; u < end; ++u) {
    reduced_[u] = false;
    staged_[u] = 0;
    early_updates_[u].clear();
  }
}

}  // namespace tessera
