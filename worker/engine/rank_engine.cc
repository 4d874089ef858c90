#include "worker/engine/rank_engine.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "worker/engine/unit_state.h"

namespace tessera {
namespace {

// How long the engine sleeps at most before it looks around. Interrupts wake it; this is for the
// case that one comes just before it falls asleep.
constexpr absl::Duration kLookAround = absl::Milliseconds(100);

}  // namespace

RankEngine::RankEngine(Options options)
    : options_(std::move(options)),
      optimizer_(*options_.config, *options_.memory,
                 SegmentsOf(*options_.layout, *options_.config, *options_.memory, options_.rank),
                 options_.state, options_.parameters),
      unit_states_(options_.layout->units.size(), UnitState::kSharded),
      reduced_(options_.layout->units.size(), false),
      stats_(options_.layout->units.size()) {}

absl::Status RankEngine::Start(Step resume_step) {
  GroupPage* group = options_.group;
  ControlPage* control = options_.control;
  RankRecord& record = group->ranks[options_.rank.value()];
  const int64_t applied = record.applied_step.load(std::memory_order_acquire);
  if (applied + 1 == resume_step.value() &&
      group->decided_step.load(std::memory_order_acquire) == resume_step.value()) {
    ApplyDecided(resume_step.value());
  } else if (applied != resume_step.value()) {
    return absl::InternalError(absl::StrCat("rank ", options_.rank.value(), " holds step ", applied,
                                            " and cannot resume at step ", resume_step.value()));
  }
  step_ = resume_step.value();
  for (size_t unit = 0; unit < unit_states_.size(); ++unit) {
    control->units[unit].state.store(static_cast<uint32_t>(UnitState::kSharded));
    control->units[unit].reduced.store(0);
    control->units[unit].unsharded.store(0);
    control->units[unit].gathered_for_step.store(0);
  }
  control->result.count.store(0);
  // Operations of older epochs are void, whoever submitted them.
  control->consumed.store(control->submitted.value.load());
  control->initialized.store(group->initialized.load(std::memory_order_acquire));
  control->committed_step.store(step_);
  control->progress_step.store(OrderStep());
  control->progress_sequence.store(0);
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
      (void)WaitUntil(
          &control->submitted, [submitted](uint32_t now) { return now != submitted; },
          AbortFlag(&interrupt_), absl::Now() + kLookAround);
      continue;
    }
    const Op op = control->ring[consumed % kRingOps];
    if (op.epoch == options_.epoch.value()) status = Execute(op);
    control->progress_kind.store(0, std::memory_order_relaxed);
    control->consumed.store(consumed + 1, std::memory_order_release);
    // Whom nothing else tells: a trainer that waits for room, or for its drop to be through.
    if (op.kind == OpKind::kDropGradients || submitted - consumed >= kRingOps) {
      Bump(&control->events);
    }
  }
  // Peers of this host that wait for this rank need not wait for the worker's word.
  options_.communicator->Abort(status);
  options_.post_backward->Synchronize();
  // A deadline ends the epoch, not the training: for the trainer it is a step to try again.
  PublishFailure(control, options_.epoch.value(),
                 absl::IsDeadlineExceeded(status) ? absl::AbortedError(status.message()) : status);
  return status;
}

absl::Status RankEngine::Execute(const Op& op) {
  ControlPage* control = options_.control;
  control->progress_unit.store(op.unit, std::memory_order_relaxed);
  control->progress_kind.store(static_cast<uint32_t>(op.kind), std::memory_order_relaxed);
  switch (op.kind) {
    case OpKind::kUnshard:
      return Unshard(op.unit);
    case OpKind::kReshard:
      return Reshard(op.unit);
    case OpKind::kReduce:
      return Reduce(op.unit);
    case OpKind::kInitialize:
      return Initialize(op.unit);
    case OpKind::kFinishInitialize:
      return FinishInitialize();
    case OpKind::kStep:
      return RunStep(op);
    case OpKind::kDropGradients:
      RETURN_IF_ERROR(AwaitReductions());
      ForgetReduced();
      return absl::OkStatus();
    case OpKind::kSave:
      return Save();
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
    RETURN_IF_ERROR(options_.gate->AwaitRelease(entry, Step(OrderStep()), order_.sequence()));
  }
  order_.Issued(entry);
  options_.control->progress_sequence.store(order_.sequence(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status RankEngine::Unshard(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  if (options_.control->initialized.load() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", UnitName(unit), "': unshard before the job has initial values"));
  }
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kUnshard, UnitName(unit)));
  const UnitLayout& layout = options_.layout->units[unit];
  const int64_t number =
      options_.recorder->Enqueued(step_ + 1, order_.sequence(), OpKind::kUnshard, unit, 0);
  RETURN_IF_ERROR(Ordered(OpKind::kUnshard, unit, layout.shards.padded_numel(),
                          options_.config->compute_dtype));
  options_.recorder->Started(number);
  RETURN_IF_ERROR(AwaitPeersAt(step_));
  options_.recorder->Done(number);
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kUnshardDone, UnitName(unit)));
  options_.control->units[unit].state.store(static_cast<uint32_t>(UnitState::kUnsharded),
                                            std::memory_order_release);
  options_.control->units[unit].unsharded.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
  return GatherAhead();
}

absl::Status RankEngine::GatherAhead() {
  order_.UpcomingUnshards(options_.config->max_gathered_units, &upcoming_);
  for (const int unit : upcoming_) {
    std::atomic<int64_t>& gathered = options_.control->units[unit].gathered_for_step;
    if (gathered.load(std::memory_order_relaxed) == step_ + 1) continue;
    RETURN_IF_ERROR(AwaitPeersAt(step_));
    gathered.store(step_ + 1, std::memory_order_release);
  }
  return absl::OkStatus();
}

absl::Status RankEngine::AwaitPeersAt(int64_t step) {
  const absl::Time deadline = absl::Now() + options_.config->collective_timeout;
  const uint32_t version = static_cast<uint32_t>(step);
  for (int peer = 0; peer < options_.config->world_size; ++peer) {
    WaitWord& word = options_.group->ranks[peer].applied_version;
    while (true) {
      const uint32_t seen = word.value.load(std::memory_order_acquire);
      if (static_cast<int32_t>(seen - version) >= 0) break;
      RETURN_IF_ERROR(Interruption());
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", options_.rank.value(), ": rank ",
                                                        peer, " has not published step ", step));
      }
      (void)WaitUntil(
          &word, [seen](uint32_t now) { return now != seen; }, AbortFlag(&interrupt_), deadline);
    }
  }
  return absl::OkStatus();
}

absl::Status RankEngine::Reshard(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kReshard, UnitName(unit)));
  options_.control->units[unit].state.store(static_cast<uint32_t>(UnitState::kSharded),
                                            std::memory_order_release);
  return absl::OkStatus();
}

absl::Status RankEngine::Reduce(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kReduce, UnitName(unit)));
  RETURN_IF_ERROR(Ordered(OpKind::kReduce, unit, options_.layout->units[unit].shards.padded_numel(),
                          options_.config->reduce_dtype));
  const bool accumulate = reduced_[unit];
  reduced_[unit] = true;
  const int64_t bytes =
      options_.layout->units[unit].shards.padded_numel() * SizeBytes(options_.config->reduce_dtype);
  const int64_t number =
      options_.recorder->Enqueued(step_ + 1, order_.sequence() - 1, OpKind::kReduce, unit, bytes);
  options_.post_backward->Enqueue([this, unit, accumulate, number] {
    options_.recorder->Started(number);
    ReduceOnStream(unit, accumulate);
    options_.recorder->Done(number);
  });
  return absl::OkStatus();
}

void RankEngine::ReduceOnStream(int unit, bool accumulate) {
  {
    absl::MutexLock lock(&mu_);
    if (!stream_status_.ok()) return;
  }
  const UnitMemory& placed = options_.memory->units()[unit];
  std::vector<const void*> sends;
  for (const std::byte* gradients : options_.gradients_by_rank) {
    sends.push_back(gradients + placed.gradient_slot * options_.memory->gradient_slot_bytes());
  }
  const ElementRange slice = options_.layout->units[unit].shards.RangeOf(options_.rank);
  float* shard =
      reinterpret_cast<float*>(options_.state + options_.memory->ReducedGradientOffsetBytes()) +
      placed.shard_offset_elements;
  const absl::Status status = options_.communicator->ReduceScatterMapped(
      sends, slice.begin, slice.size(), options_.config->reduce_dtype,
      1.0f / static_cast<float>(options_.config->world_size), accumulate, shard, &stats_[unit]);
  if (!status.ok()) {
    {
      absl::MutexLock lock(&mu_);
      stream_status_ = Annotate(status, absl::StrCat("reduce unit '", UnitName(unit), "'"));
    }
    Interrupt();
    return;
  }
  options_.control->units[unit].reduced.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
}

absl::Status RankEngine::AwaitReductions() {
  options_.post_backward->Synchronize();
  absl::MutexLock lock(&mu_);
  return stream_status_;
}

absl::Status RankEngine::Initialize(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kInitialize, UnitName(unit)));
  if (options_.control->initialized.load() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", UnitName(unit), "': the job has its initial values already"));
  }
  const std::byte* own = options_.gradients_by_rank[options_.rank.value()];
  optimizer_.Initialize(
      unit, reinterpret_cast<const float*>(own + options_.memory->units()[unit].gradient_slot *
                                                     options_.memory->gradient_slot_bytes()));
  options_.control->units[unit].reduced.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
  return absl::OkStatus();
}

absl::Status RankEngine::FinishInitialize() {
  const int64_t number =
      options_.recorder->Enqueued(OrderStep(), order_.sequence(), OpKind::kFinishInitialize, -1, 0);
  RETURN_IF_ERROR(Ordered(OpKind::kFinishInitialize, -1, 0, options_.config->compute_dtype));
  options_.recorder->Started(number);
  RETURN_IF_ERROR(options_.communicator->Barrier());
  options_.recorder->Done(number);
  options_.group->initialized.store(1, std::memory_order_release);
  options_.control->initialized.store(1, std::memory_order_release);
  order_.StepCommitted();
  options_.control->progress_step.store(OrderStep(), std::memory_order_relaxed);
  options_.control->progress_sequence.store(0, std::memory_order_relaxed);
  PublishResult(absl::OkStatus(), 0);
  return absl::OkStatus();
}

absl::Status RankEngine::Save() {
  const int64_t number =
      options_.recorder->Enqueued(OrderStep(), order_.sequence(), OpKind::kSave, -1, 0);
  RETURN_IF_ERROR(AwaitReductions());
  RETURN_IF_ERROR(Ordered(OpKind::kSave, -1, 0, options_.config->compute_dtype));
  options_.recorder->Started(number);
  const std::string path = LoadText(options_.control->path, kMaxPathBytes);
  const absl::Status status = options_.save(path, optimizer_.Parameters(step_ % 2));
  RETURN_IF_ERROR(Interruption());
  options_.recorder->Done(number);
  PublishResult(status, 0);
  return absl::OkStatus();
}

void RankEngine::PublishResult(const absl::Status& status, double gradient_norm) {
  OpResult& result = options_.control->result;
  result.status_code = status.raw_code();
  result.gradient_norm = gradient_norm;
  StoreText(status.message(), result.message, kMaxErrorBytes);
  result.count.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
}

void RankEngine::ForgetReduced() { reduced_.assign(reduced_.size(), false); }

}  // namespace tessera
