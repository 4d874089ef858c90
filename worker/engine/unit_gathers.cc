#include "worker/engine/unit_gathers.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

RemoteSlices::Options RemoteOptions(const RankEngineOptions& options) {
  return {options.layout,
          options.config,
          options.memory,
          options.topology,
          options.rank,
          options.epoch,
          &options.parameters,
          options.kernels,
          options.group->windows,
          options.gatherer,
          /*gives_memory_back=*/options.device_gradients == nullptr};
}

}  // namespace

UnitGathers::UnitGathers(EngineContext* context, GradientReductions* reductions)
    : context_(*context),
      reductions_(*reductions),
      remote_(RemoteOptions(context->options)),
      slots_(context->options.slots),
      full_precision_at_(context->num_units(), -1) {
  limit_.max_units = context_.options.config->max_gathered_units;
  limit_.max_bytes = context_.options.config->max_gathered_bytes;
  for (int unit = 0; unit < context_.num_units(); ++unit) {
    limit_.unit_bytes.push_back(context_.UnitOf(unit).shards.padded_numel() *
                                SizeBytes(context_.MemoryOf(unit).compute_dtype));
  }
}

void UnitGathers::Start() {
  for (int unit = 0; unit < context_.num_units(); ++unit) {
    UnitWords& words = WordsOf(unit);
    words.state.store(static_cast<uint32_t>(UnitState::kSharded));
    words.reduced.store(0);
    words.unsharded.store(0);
    words.gathered_for_step.store(0);
    words.gathered_window.store(0);
  }
}

absl::Status UnitGathers::Unshard(int unit, bool full_precision) {
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  if (!context_.initialized()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", context_.UnitName(unit), "': unshard before the job has initial values"));
  }
  // Refused operations change nothing and reach no peer.
  RETURN_IF_ERROR(context_.Transit(unit, UnitEvent::kUnshard));
  const RankEngineOptions& options = context_.options;
  const int64_t step = context_.order.step();
  const int64_t number =
      context_.EnqueueRecord(OpKind::kUnshard, unit, remote_.CountGatheredBytes(unit, step));
  RETURN_IF_ERROR(context_.order.Issue(
      // The dtype is compared as well: full precision on one rank alone would be another
      // collective.
      OpKind::kUnshard, unit, context_.UnitOf(unit).shards.padded_numel(),
      full_precision ? context_.FullDTypeOf(unit) : context_.MemoryOf(unit).compute_dtype));
  options.recorder->Started(number);
  // On one host this is all that an unshard waits for: the slices are in their place already.
  RETURN_IF_ERROR(AwaitPeersAt(step));
  const bool other_memory = full_precision && options.memory->HasOtherFullMemory(unit);
  // It was gathered in low precision, which is other memory in the same slot.
  if (other_memory && slots_.HasSlot(unit)) DropAhead(unit);
  RETURN_IF_ERROR(TakeSlot(unit));
  slots_.Open(unit, other_memory);
  RETURN_IF_ERROR(other_memory ? PublishFullPrecision(unit) : remote_.Open(unit, step));
  options.recorder->Done(number);
  RETURN_IF_ERROR(context_.Transit(unit, UnitEvent::kUnshardDone));
  // Release: a trainer that acquires the state reads parameters of this step.
  WordsOf(unit).state.store(static_cast<uint32_t>(UnitState::kUnsharded),
                            std::memory_order_release);
  // After the state: GatherAhead names the next window by this count.
  WordsOf(unit).unsharded.fetch_add(1, std::memory_order_acq_rel);
  // Wakes the trainer first, so that it computes while the next units are gathered.
  Bump(&options.control->events);
  return GatherAhead();
}

// Nobody reads what the copy replaces: a rank closes its windows of a step before it votes for it.
absl::Status UnitGathers::PublishFullPrecision(int unit) {
  const int64_t step = context_.order.step();
  // On every rank. What is in a slot does not stay.
  if (full_precision_at_[unit] == step && !slots_.HasSlot(unit)) return absl::OkStatus();
  if (context_.options.config->fake_all_gather) return absl::OkStatus();
  RETURN_IF_ERROR(reductions_.Await());  // The stream uses the communicator too.
  context_.optimizer.PublishFullPrecision(unit, step);
  RETURN_IF_ERROR(context_.options.kernels->Finish());
  const int64_t slice_bytes = context_.FullBytes(unit, context_.UnitOf(unit).shards.shard_numel());
  RETURN_IF_ERROR(
      Annotate(Holders(unit).AllGatherMapped(context_.options.parameters[unit].full, slice_bytes),
               absl::StrCat("unshard unit '", context_.UnitName(unit), "' in full precision")));
  full_precision_at_[unit] = step;
  return absl::OkStatus();
}

absl::Status UnitGathers::GatherAhead() {
  const int64_t step = context_.order.step();
  // The record is the same on all ranks, so all gather the same units ahead, in one order.
  context_.order.UpcomingUnshards(limit_, &upcoming_);
  for (const int unit : upcoming_) {
    UnitWords& words = WordsOf(unit);
    // Relaxed: only this thread stores it.
    if (words.gathered_for_step.load(std::memory_order_relaxed) == step + 1) continue;
    // Ends here instead of skipping the unit: gathers are collective and need one order on all
    // ranks.
    if (!slots_.MayGatherAhead(unit)) break;
    // In the loop: a rank that has nothing to gather ahead waits for nobody here.
    RETURN_IF_ERROR(AwaitPeersAt(step));
    RETURN_IF_ERROR(TakeSlot(unit));
    slots_.GatherAhead(unit);
    RETURN_IF_ERROR(remote_.GatherAhead(unit, step));
    // Release, as in Unshard. The trainer takes these words without asking for the unit.
    if (remote_.GathersEachWindow(unit)) {
      const uint32_t next = words.unsharded.load(std::memory_order_relaxed) + 1;
      words.gathered_window.store(next, std::memory_order_release);
    } else {
      words.gathered_for_step.store(step + 1, std::memory_order_release);
    }
  }
  return absl::OkStatus();
}

absl::Status UnitGathers::EndForward() {
  // All ranks issue the same operations, so they cut the order at the same forward.
  if (!context_.order.ForwardEnded()) return absl::OkStatus();
  RETURN_IF_ERROR(
      context_.order.Issue(OpKind::kEndForward, -1, 0, context_.options.config->compute_dtype));
  context_.order.EndPass();
  return GatherAhead();
}

void UnitGathers::ParametersChange(bool windows_are_closed) {
  // Before anything is overwritten: the trainer reads these words without the executor.
  for (int unit = 0; unit < context_.num_units(); ++unit)
    WordsOf(unit).gathered_window.store(0, std::memory_order_release);
  // The trainer's words are 0 by now: nobody reads what a slot was filled with ahead.
  slots_.Forget();
  if (windows_are_closed) remote_.StepTaken();
}

void UnitGathers::CloseGathered() {
  for (int unit = 0; unit < context_.num_units(); ++unit) {
    WordsOf(unit).gathered_for_step.store(0, std::memory_order_release);
    WordsOf(unit).gathered_window.store(0, std::memory_order_release);
  }
}

void UnitGathers::DropAhead(int unit) {
  if (!slots_.Drop(unit)) return;
  WordsOf(unit).gathered_window.store(0, std::memory_order_release);
  remote_.Drop(unit);
}

absl::Status UnitGathers::TakeSlot(int unit) {
  if (const int other = slots_.OtherIn(unit); other >= 0) {
    if (slots_.IsOpen(other)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "unit '", context_.UnitName(unit), "': unshard while unit '", context_.UnitName(other),
          "' is unsharded, which has the same slot of the GPU"));
    }
    // It was gathered ahead and not asked for: gathered again when it is.
    DropAhead(other);
  }
  // The unit before it in the slot may still be read by the trainer's GPU.
  const uint32_t event = slots_.TakeReadUntil(unit);
  if (event == 0) return absl::OkStatus();
  // The patience of a collective: the peers' gathers wait for this one.
  const absl::Status read = context_.options.window_events->Await(
      event - 1, SteadyNow() + context_.options.config->collective_timeout,
      [this] { return context_.interrupt.is_raised(); });
  // The trainer that read it is gone.
  if (absl::IsUnavailable(read)) return absl::OkStatus();
  return Annotate(read, absl::StrCat("unit '", context_.UnitName(unit),
                                     "': the reader of the unit before it in its slot"));
}

absl::Status UnitGathers::AwaitPeersAt(int64_t step) {
  const RankEngineOptions& options = context_.options;
  const absl::Time deadline = SteadyNow() + options.config->collective_timeout;
  const uint32_t version = static_cast<uint32_t>(step);
  const RankTopology& topology = *options.topology;
  // Only this host's ranks have words in this page. What other hosts publish comes with their
  // slices.
  const int host = topology.HostOf(options.rank.value());
  for (int peer = topology.FirstRank(host); peer < topology.FirstRank(host + 1); ++peer) {
    WaitWord& word = options.group->ranks[topology.LocalIndex(peer)].applied_version;
    while (true) {
      // The version wraps around as the step's low bits do.
      const uint32_t seen = word.value.load(std::memory_order_acquire);
      if (static_cast<int32_t>(seen - version) >= 0) break;
      // The interrupt ends the wait below, so it is looked at in each round.
      RETURN_IF_ERROR(context_.interrupt.Check());
      if (SteadyNow() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("rank ", options.rank.value(), ": rank ",
                                                        peer, " has not published step ", step));
      }
      // However it ended: the loop looks at the version, the interrupt and the deadline again.
      (void)WaitUntil(
          &word, [seen](uint32_t now) { return now != seen; }, AbortFlag(context_.interrupt.flag()),
          deadline);
    }
  }
  return absl::OkStatus();
}

absl::Status UnitGathers::Reshard(const Op& op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  // The trainer names an event only where slots are shared, and a unit without a slot has none.
  if (op.array_or_event != 0 && (!context_.OnDevice() || !slots_.HasSlot(unit))) {
    return absl::InvalidArgumentError(absl::StrCat("unit '", context_.UnitName(unit),
                                                   "': reshard after an event, without a slot"));
  }
  RETURN_IF_ERROR(context_.Transit(unit, UnitEvent::kReshard));
  // What is gathered next depends on which slots are free, so all ranks free them alike.
  if (slots_.HasSlot(unit)) {
    RETURN_IF_ERROR(context_.order.Issue(OpKind::kReshard, unit,
                                         context_.UnitOf(unit).shards.padded_numel(),
                                         context_.MemoryOf(unit).compute_dtype));
  }
  slots_.Close(unit, op.array_or_event);
  remote_.Close(unit);
  WordsOf(unit).state.store(static_cast<uint32_t>(UnitState::kSharded), std::memory_order_release);
  return slots_.HasSlot(unit) ? GatherAhead() : absl::OkStatus();
}

absl::Status UnitGathers::Refresh(int64_t step, const std::vector<bool>& written) {
  // Units that the trainer has open are not unsharded again, so nothing else would wait.
  RETURN_IF_ERROR(AwaitPeersAt(step));
  for (size_t unit = 0; unit < written.size(); ++unit) {
    if (!written[unit]) continue;
    if (slots_.HasSlot(unit) && !slots_.IsOpen(unit)) continue;  // Another unit may have the slot.
    RETURN_IF_ERROR(remote_.Refresh(unit, step));
  }
  return absl::OkStatus();
}

Communicator& UnitGathers::Holders(int unit) const {
  const RankEngineOptions& options = context_.options;
  const bool one_host = options.topology->num_hosts() == 1;
  // Each host has all slices of a hybrid unit, so ranks of other hosts need not join
  // (docs/adr/0016).
  return one_host || remote_.Spans(unit) ? *options.communicator : *options.host;
}

}  // namespace tessera
