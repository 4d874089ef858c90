// What RankEngine does with single units: unshard, gather ahead, reshard, reduce, initialise.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "layout/reduced_parts.h"
#include "worker/engine/rank_engine.h"
#include "worker/engine/unit_state.h"

namespace tessera {

absl::Status RankEngine::Unshard(int unit, bool full_precision) {
  RETURN_IF_ERROR(CheckUnit(unit));
  if (options_.control->initialized.load() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", UnitName(unit), "': unshard before the job has initial values"));
  }
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kUnshard, UnitName(unit)));
  const UnitLayout& layout = options_.layout->units[unit];
  const int64_t number = options_.recorder->Enqueued(step_ + 1, order_.sequence(), OpKind::kUnshard,
                                                     unit, remote_.CountGatheredBytes(unit, step_));
  const DType compute_dtype = options_.memory->units()[unit].compute_dtype;
  RETURN_IF_ERROR(Ordered(OpKind::kUnshard, unit, layout.shards.padded_numel(),
                          full_precision ? FullDTypeOf(unit) : compute_dtype));
  options_.recorder->Started(number);
  RETURN_IF_ERROR(AwaitPeersAt(step_));
  const bool other_memory = full_precision && options_.memory->HasOtherFullMemory(unit);
  if (other_memory && slots_.HasSlot(unit)) DropAhead(unit);
  RETURN_IF_ERROR(TakeSlot(unit));
  slots_.Open(unit, other_memory);
  RETURN_IF_ERROR(other_memory ? PublishFullPrecision(unit) : remote_.Open(unit, step_));
  options_.recorder->Done(number);
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kUnshardDone, UnitName(unit)));
  options_.control->units[unit].state.store(static_cast<uint32_t>(UnitState::kUnsharded),
                                            std::memory_order_release);
  options_.control->units[unit].unsharded.fetch_add(1, std::memory_order_acq_rel);
  // Wakes the trainer first, so that it computes while the next units are gathered.
  Bump(&options_.control->events);
  return GatherAhead();
}

// Nobody reads what the copy replaces: a rank closes its windows of a step before it votes for it.
absl::Status RankEngine::PublishFullPrecision(int unit) {
  // On every rank. What is in a slot does not stay.
  if (full_precision_at_[unit] == step_ && !slots_.HasSlot(unit)) return absl::OkStatus();
  if (options_.config->fake_all_gather) return absl::OkStatus();
  RETURN_IF_ERROR(AwaitReductions());  // The stream uses the communicator too.
  optimizer_.PublishFullPrecision(unit, step_);
  RETURN_IF_ERROR(options_.kernels->Finish());
  const int64_t slice_bytes = FullBytes(unit, options_.layout->units[unit].shards.shard_numel());
  RETURN_IF_ERROR(
      Annotate(Holders(unit).AllGatherMapped(options_.parameters[unit].full, slice_bytes),
               absl::StrCat("unshard unit '", UnitName(unit), "' in full precision")));
  full_precision_at_[unit] = step_;
  return absl::OkStatus();
}

absl::Status RankEngine::GatherAhead() {
  order_.UpcomingUnshards(gather_limit_, &upcoming_);
  for (const int unit : upcoming_) {
    UnitWords& words = options_.control->units[unit];
    if (words.gathered_for_step.load(std::memory_order_relaxed) == step_ + 1) continue;
    // Ends here instead of skipping the unit: gathers are collective and need one order on all
    // ranks.
    if (!slots_.MayGatherAhead(unit)) break;
    RETURN_IF_ERROR(AwaitPeersAt(step_));
    RETURN_IF_ERROR(TakeSlot(unit));
    slots_.GatherAhead(unit);
    RETURN_IF_ERROR(remote_.GatherAhead(unit, step_));
    if (remote_.GathersEachWindow(unit)) {
      const uint32_t next = words.unsharded.load(std::memory_order_relaxed) + 1;
      words.gathered_window.store(next, std::memory_order_release);
    } else {
      words.gathered_for_step.store(step_ + 1, std::memory_order_release);
    }
  }
  return absl::OkStatus();
}

void RankEngine::ForgetGathered() {
  for (size_t unit = 0; unit < unit_states_.size(); ++unit) {
    options_.control->units[unit].gathered_window.store(0, std::memory_order_release);
  }
  slots_.Forget();
}

void RankEngine::DropAhead(int unit) {
  if (!slots_.Drop(unit)) return;
  options_.control->units[unit].gathered_window.store(0, std::memory_order_release);
  remote_.Drop(unit);
}

absl::Status RankEngine::TakeSlot(int unit) {
  if (const int other = slots_.OtherIn(unit); other >= 0) {
    if (slots_.IsOpen(other)) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit '", UnitName(unit), "': unshard while unit '", UnitName(other),
                       "' is unsharded, which has the same slot of the GPU"));
    }
    DropAhead(other);
  }
  const uint32_t event = slots_.TakeReadUntil(unit);
  if (event == 0) return absl::OkStatus();
  const absl::Status read = options_.window_events->Await(
      event - 1, SteadyNow() + options_.config->collective_timeout,
      [this] { return interrupt_.load(std::memory_order_acquire) != 0; });
  // The trainer that read it is gone.
  if (absl::IsUnavailable(read)) return absl::OkStatus();
  return Annotate(read, absl::StrCat("unit '", UnitName(unit),
                                     "': the reader of the unit before it in its slot"));
}

absl::Status RankEngine::AwaitPeersAt(int64_t step) {
  const absl::Time deadline = SteadyNow() + options_.config->collective_timeout;
  const uint32_t version = static_cast<uint32_t>(step);
  const RankTopology& topology = *options_.topology;
  const int host = topology.HostOf(options_.rank.value());
  for (int peer = topology.FirstRank(host); peer < topology.FirstRank(host + 1); ++peer) {
    WaitWord& word = options_.group->ranks[topology.LocalIndex(peer)].applied_version;
    while (true) {
      const uint32_t seen = word.value.load(std::memory_order_acquire);
      if (static_cast<int32_t>(seen - version) >= 0) break;
      RETURN_IF_ERROR(Interruption());
      if (SteadyNow() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", options_.rank.value(), ": rank ",
                                                        peer, " has not published step ", step));
      }
      (void)WaitUntil(
          &word, [seen](uint32_t now) { return now != seen; }, AbortFlag(&interrupt_), deadline);
    }
  }
  return absl::OkStatus();
}

absl::Status RankEngine::Reshard(const Op& op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(CheckUnit(unit));
  if (op.array != 0 && (options_.window_events == nullptr || !slots_.HasSlot(unit))) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit '", UnitName(unit), "': reshard after an event, without a slot"));
  }
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kReshard, UnitName(unit)));
  // What is gathered next depends on which slots are free, so all ranks free them alike.
  if (slots_.HasSlot(unit)) {
    RETURN_IF_ERROR(Ordered(OpKind::kReshard, unit,
                            options_.layout->units[unit].shards.padded_numel(),
                            options_.memory->units()[unit].compute_dtype));
  }
  slots_.Close(unit, op.array);
  remote_.Close(unit);
  options_.control->units[unit].state.store(static_cast<uint32_t>(UnitState::kSharded),
                                            std::memory_order_release);
  return slots_.HasSlot(unit) ? GatherAhead() : absl::OkStatus();
}

absl::Status RankEngine::Reduce(const Op& op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(CheckUnit(unit));
  const DType dtype = static_cast<DType>(op.slot_dtype);
  const bool on_device = op.gradient_on_device != 0;
  if (op.slot_dtype != static_cast<uint32_t>(dtype) ||
      (dtype != FullDTypeOf(unit) && !IsHalf(dtype))) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit '", UnitName(unit), "': gradient of dtype number ", op.slot_dtype));
  }
  if (on_device && options_.device_gradients == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit '", UnitName(unit), "': gradient on a device, and the rank has none"));
  }
  ASSIGN_OR_RETURN(unit_states_[unit],
                   Transition(unit_states_[unit], UnitEvent::kReduce, UnitName(unit)));
  const int64_t numel =
      CountIn(reduced_parts_[unit], {0, options_.layout->units[unit].shards.padded_numel()});
  RETURN_IF_ERROR(Ordered(OpKind::kReduce, unit, numel, dtype));
  const bool accumulate = reduced_[unit];
  reduced_[unit] = true;
  const int64_t number = options_.recorder->Enqueued(
      step_ + 1, order_.sequence() - 1, OpKind::kReduce, unit, numel * SizeBytes(dtype));
  on_stream_.fetch_add(1);
  options_.post_backward->Enqueue([this, op, dtype, accumulate, number] {
    ReduceOnStream(op, dtype, accumulate, number);
    on_stream_.fetch_sub(1);
  });
  if (!options_.config->optimizer_in_backward) return absl::OkStatus();
  const int64_t update =
      options_.recorder->Enqueued(step_ + 1, order_.sequence() - 1, OpKind::kUpdate, unit, 0);
  options_.post_backward->Enqueue(
      [this, unit, updates = AssumedUpdates(unit), groups = assumed_groups_, update]() mutable {
        UpdateEarly(unit, std::move(updates), std::move(groups), update);
      });
  return absl::OkStatus();
}

void RankEngine::ReduceOnStream(const Op& op, DType dtype, bool accumulate, int64_t number) {
  const int unit = op.unit;
  {
    absl::MutexLock lock(&mu_);
    if (!stream_status_.ok()) return;
  }
  options_.recorder->Started(number);
  (void)FaultPoint("reduce.started");
  absl::Status status = OnDevice() ? AwaitGradient(op, dtype) : absl::OkStatus();
  if (status.ok()) status = ReduceOnce(unit, dtype, accumulate);
  if (!status.ok()) {
    status = Annotate(status, absl::StrCat("reduce unit '", UnitName(unit), "'"));
    {
      absl::MutexLock lock(&mu_);
      stream_status_ = status;
    }
    Interrupt();
    options_.gate->Interrupt(status);
    return;
  }
  options_.recorder->Done(number);
  options_.control->units[unit].reduced.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
}

absl::Status RankEngine::ReduceOnce(int unit, DType dtype, bool accumulate) {
  if (options_.config->fake_reduce_scatter) {
    RETURN_IF_ERROR(FakeReduction(unit));
  } else {
    RETURN_IF_ERROR(ReduceMapped(unit, dtype, accumulate));
  }
  return KeepLowPrecision(unit, dtype);
}

absl::Status RankEngine::AwaitGradient(const Op& op, DType dtype) {
  if (op.gradient_on_device == 0) return BringToDevice(op.unit, dtype);
  if (op.array == 0) return absl::OkStatus();
  return options_.gradient_events->Await(
      op.array - 1, SteadyNow() + options_.config->collective_timeout,
      [this] { return interrupt_.load(std::memory_order_acquire) != 0; });
}

absl::Status RankEngine::BringToDevice(int unit, DType dtype) {
  const int64_t offset =
      options_.memory->units()[unit].gradient_slot * options_.memory->gradient_slot_bytes();
  options_.stream_kernels->Copy(
      options_.device_gradients + offset, OwnSlot(unit),
      options_.layout->units[unit].shards.padded_numel() * SizeBytes(dtype));
  return options_.stream_kernels->Finish();
}

absl::Status RankEngine::ReduceMapped(int unit, DType dtype, bool accumulate) {
  const UnitMemory& placed = options_.memory->units()[unit];
  std::vector<const void*> sends;
  for (const std::byte* gradients : options_.gradients_by_rank) {
    if (gradients == nullptr) {
      sends.push_back(nullptr);
      continue;
    }
    sends.push_back(gradients + placed.gradient_slot * options_.memory->gradient_slot_bytes());
  }
  return options_.communicator->ReduceScatterMapped(
      sends, slices_[unit], reduced_parts_[unit], dtype, 1.0 / options_.config->world_size,
      accumulate, {ReducedGradient(unit), FullDTypeOf(unit)}, &stats_[unit]);
}

absl::Status RankEngine::FakeReduction(int unit) {
  options_.stream_kernels->Clear(ReducedGradient(unit),
                                 FullBytes(unit, slices_[unit][options_.rank.value()].size()));
  stats_[unit] = host::GradientStats();
  return options_.stream_kernels->Finish();
}

absl::Status RankEngine::KeepLowPrecision(int unit, DType dtype) {
  if (!options_.config->keep_low_precision_gradients || !IsHalf(dtype)) return absl::OkStatus();
  options_.stream_kernels->RoundToHalf(dtype, ReducedValues(unit));
  return MeasureReduced(unit, options_.stream_kernels);  // Rounding may have made infinities.
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
  optimizer_.Initialize(unit, OwnSlot(unit));
  RETURN_IF_ERROR(options_.kernels->Finish());
  options_.control->units[unit].reduced.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
  return absl::OkStatus();
}

}  // namespace tessera
