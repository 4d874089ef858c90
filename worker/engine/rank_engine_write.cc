// What RankEngine does with whole parameters and gradients: read them, set them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/engine/rank_engine.h"

namespace tessera {
namespace {

// What each rank brings to a write; travels as bytes between ranks of one build.
struct WriteVote {
  int64_t step = 0;
  uint64_t staged_hash = 0;
  uint64_t put = 0;         // As Vote::put.
  int64_t wanted_save = 0;  // See state_files.h.
};

uint64_t HashStaged(const std::vector<uint32_t>& units,
                    const std::optional<TrainingProgress>& loaded) {
  uint64_t hash = 0;
  for (const uint32_t arrays : units) hash = hash * 31 + arrays + 1;
  if (!loaded.has_value()) return hash;
  for (const int64_t count : loaded->update_counts) hash = hash * 31 + count + 1;
  return hash * 31 + loaded->step + 1;
}

constexpr uint32_t Bit(StateArray array) { return 1u << static_cast<int>(array); }

absl::Status CheckVotes(const std::vector<WriteVote>& votes) {
  for (size_t rank = 1; rank < votes.size(); ++rank) {
    if (votes[rank].step != votes[0].step) {
      return absl::FailedPreconditionError(absl::StrCat("write: rank 0 is at step ", votes[0].step,
                                                        ", rank ", rank, " at step ",
                                                        votes[rank].step));
    }
    if (votes[rank].staged_hash != votes[0].staged_hash) {
      return absl::FailedPreconditionError(
          absl::StrCat("nothing was written: ranks 0 and ", rank,
                       " set parameters of different units, or another state of the optimizer"));
    }
  }
  return absl::OkStatus();
}

// The put that all offered; 0: none.
uint64_t AgreedPut(const std::vector<WriteVote>& votes) {
  for (const WriteVote& vote : votes) {
    if (vote.put != votes[0].put) return 0;
  }
  return votes[0].put;
}

int64_t WantedByAll(const std::vector<WriteVote>& votes) {
  const auto same = [&](const WriteVote& vote) { return vote.wanted_save == votes[0].wanted_save; };
  return std::all_of(votes.begin(), votes.end(), same) ? votes[0].wanted_save : 0;
}

}  // namespace

std::byte* RankEngine::OwnSlot(int unit) const {
  return options_.own_gradients +
         options_.memory->units()[unit].gradient_slot * options_.memory->gradient_slot_bytes();
}

void RankEngine::ReleaseSlot(int unit) {
  options_.control->units[unit].reduced.fetch_add(1, std::memory_order_acq_rel);
  Bump(&options_.control->events);
}

absl::StatusOr<const std::byte*> RankEngine::ShardToRead(const Op& op, bool gradient) const {
  const int unit = op.unit;
  if (options_.control->initialized.load() == 0 || (gradient && !reduced_[unit])) {
    return absl::FailedPreconditionError(
        absl::StrCat("unit '", UnitName(unit), "': ", OpName(op.kind), " without values"));
  }
  if (gradient) return ReducedGradient(unit);
  if (op.array > static_cast<uint32_t>(StateArray::kSecondMoment))
    return absl::InvalidArgumentError(absl::StrCat(OpName(op.kind), " of array ", op.array));
  return optimizer_.Array(static_cast<StateArray>(op.array), step_ % 2) +
         options_.memory->units()[unit].shard_offset_bytes;
}

absl::Status RankEngine::Read(const Op& op) {
  const OpKind kind = op.kind;
  const int unit = op.unit;
  RETURN_IF_ERROR(CheckUnit(unit));
  ASSIGN_OR_RETURN(const std::byte* shard, ShardToRead(op, kind == OpKind::kReadGradient));
  const ShardMap& shards = options_.layout->units[unit].shards;
  const int64_t number = options_.recorder->Enqueued(step_ + 1, order_.sequence(), kind, unit,
                                                     FullBytes(unit, shards.padded_numel()));
  RETURN_IF_ERROR(AwaitReductions());
  RETURN_IF_ERROR(Ordered(kind, unit, shards.padded_numel(), FullDTypeOf(unit)));
  options_.recorder->Started(number);
  const int64_t shard_bytes = FullBytes(unit, shards.shard_numel());
  if (options_.images != nullptr) {
    std::byte* own = OwnSlot(unit) + FullBytes(unit, shards.RangeOf(options_.rank).begin);
    options_.kernels->Copy(own, shard, shard_bytes);
    RETURN_IF_ERROR(options_.kernels->Finish());
    shard = own;
  }
  RETURN_IF_ERROR(Holders(unit).AllGather(shard, OwnSlot(unit), shard_bytes));
  options_.recorder->Done(number);
  ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status RankEngine::ReadShard(const Op& op) {
  const OpKind kind = op.kind;
  const int unit = op.unit;
  RETURN_IF_ERROR(CheckUnit(unit));
  ASSIGN_OR_RETURN(const std::byte* shard, ShardToRead(op, kind == OpKind::kReadGradientShard));
  RETURN_IF_ERROR(AwaitReductions());
  const ElementRange slice = options_.layout->units[unit].shards.RangeOf(options_.rank);
  options_.kernels->Copy(OwnSlot(unit) + FullBytes(unit, slice.begin), shard,
                         FullBytes(unit, slice.size()));
  RETURN_IF_ERROR(options_.kernels->Finish());
  ReleaseSlot(unit);
  return absl::OkStatus();
}

// Bytes of the trainers', which mean nothing here.
absl::Status RankEngine::Exchange(OpKind kind, int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  const bool is_broadcast = kind == OpKind::kBroadcast;
  const DType dtype = is_broadcast ? FullDTypeOf(unit) : DType::kFp32;
  const int64_t of_rank = options_.memory->ExchangeNumel(options_.config->world_size);
  const int64_t numel = is_broadcast ? options_.layout->units[unit].shards.padded_numel()
                                     : of_rank * options_.config->world_size;
  const int64_t number = options_.recorder->Enqueued(OrderStep(), order_.sequence(), kind, unit,
                                                     numel * SizeBytes(dtype));
  RETURN_IF_ERROR(AwaitReductions());
  RETURN_IF_ERROR(Ordered(kind, unit, numel, dtype));
  options_.recorder->Started(number);
  std::byte* slot = OwnSlot(unit);
  if (is_broadcast) {
    RETURN_IF_ERROR(options_.communicator->Broadcast(slot, numel * SizeBytes(dtype), /*root=*/0));
  } else {
    const int64_t bytes = of_rank * SizeBytes(dtype);
    RETURN_IF_ERROR(
        options_.communicator->AllGather(slot + options_.rank.value() * bytes, slot, bytes));
  }
  options_.recorder->Done(number);
  ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status RankEngine::Write(const Op& op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(CheckUnit(unit));
  if (op.array > static_cast<uint32_t>(StateArray::kSecondMoment))
    return absl::InvalidArgumentError(absl::StrCat(OpName(op.kind), " of array ", op.array));
  // The job's first values, of which version 0 is made.
  const bool first = options_.control->initialized.load() == 0;
  RETURN_IF_ERROR(AwaitReductions());  // Units may be updated there, in backward.
  if (!first) RETURN_IF_ERROR(AwaitHold());
  const bool is_begun = std::any_of(staged_.begin(), staged_.end(), [](uint32_t a) { return a; });
  if (first && !is_begun) optimizer_.BeginInitial();
  const auto array = static_cast<StateArray>(op.array);
  optimizer_.Stage(array, unit, OwnSlot(unit), first ? 0 : step_ + 1);
  RETURN_IF_ERROR(options_.kernels->Finish());
  staged_[unit] |= Bit(array);
  ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status RankEngine::WriteGradient(int unit) {
  RETURN_IF_ERROR(CheckUnit(unit));
  RETURN_IF_ERROR(AwaitReductions());
  const ElementRange slice = options_.layout->units[unit].shards.RangeOf(options_.rank);
  for (const ElementRange& part : reduced_parts_[unit]) {  // The rest stays 0.
    const ElementRange own = Intersect(part, slice);
    if (own.empty()) continue;
    options_.kernels->Copy(ReducedGradient(unit) + FullBytes(unit, own.begin - slice.begin),
                           OwnSlot(unit) + FullBytes(unit, own.begin), FullBytes(unit, own.size()));
  }
  RETURN_IF_ERROR(MeasureReduced(unit, options_.kernels));
  reduced_[unit] = true;
  early_updates_[unit].clear();
  options_.control->within_step.store(1, std::memory_order_relaxed);
  ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status RankEngine::FinishWrite(const Op& op) {
  const int64_t next = step_ + 1;
  const int64_t number = options_.recorder->Enqueued(next, order_.sequence(), op.kind, -1, 0);
  std::optional<TrainingProgress> loaded;
  if (op.sets_moments != 0) {
    ASSIGN_OR_RETURN(loaded, DecodeProgress(TakeRequest(), options_.memory->num_parameters(),
                                            options_.config->groups.size()));
  }
  RETURN_IF_ERROR(Ordered(op.kind, -1, options_.memory->shard_numel(), DType::kFp32));
  RETURN_IF_ERROR(AwaitReductions());
  options_.recorder->Started(number);
  for (std::vector<int64_t>& updates : early_updates_) updates.clear();
  StagedArrays written(staged_.size(), 0);
  written.swap(staged_);
  if (options_.control->initialized.load() == 0) {
    for (size_t unit = 0; unit < written.size(); ++unit) {
      if (loaded.has_value() && (written[unit] & Bit(StateArray::kParameter)) != 0) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("unit '", UnitName(unit), "': write before the job has initial values"));
    }
    options_.recorder->Done(number);
    optimizer_.PublishInitial();
    RETURN_IF_ERROR(options_.kernels->Finish());
    initial_progress_.step = loaded->step;
    initial_progress_.update_counts = loaded->update_counts;
    options_.group->ranks[LocalIndex()].has_momentum.store(1);
    return FinishInitialize();
  }
  std::vector<StateArray> arrays = {StateArray::kParameter};
  if (loaded.has_value()) {
    for (const StateArray moment : optimizer_.Moments()) arrays.push_back(moment);
  }
  RETURN_IF_ERROR(AwaitHold());
  for (size_t unit = 0; unit < written.size(); ++unit) {
    for (const StateArray array : arrays) {
      if ((written[unit] & Bit(array)) == 0) optimizer_.Stage(array, unit, nullptr, next);
    }
  }
  return CommitStaged(op.kind, number, written, loaded);
}

absl::Status RankEngine::CommitStaged(OpKind kind, int64_t number, const StagedArrays& written,
                                      const std::optional<TrainingProgress>& loaded) {
  // The executor that finishes the decided write takes the staged values as they are.
  RETURN_IF_ERROR(options_.kernels->Finish());
  const int64_t next = step_ + 1;
  const bool is_step = kind == OpKind::kFinishTrainersStep;
  // Elsewhere a trainer may be in the middle of a forward.
  const uint64_t put = is_step ? OfferPut() : 0;
  const WriteVote vote = {next, HashStaged(written, loaded), put, options_.files->wanted_save()};
  std::vector<WriteVote> votes(options_.config->world_size);
  RETURN_IF_ERROR(FaultPoint("write.before-vote"));
  RETURN_IF_ERROR(options_.communicator->AllGather(&vote, votes.data(), sizeof(vote)));
  RETURN_IF_ERROR(FaultPoint("write.after-vote"));
  const absl::Status agreed = CheckVotes(votes);
  if (!agreed.ok()) {
    options_.recorder->Done(number);
    if (options_.buffers != nullptr) options_.buffers->DropLoaded();
    RETURN_IF_ERROR(TakeBackPublished());
    RETURN_IF_ERROR(TakePut(put, 0));
    PublishResult(agreed, 0);
    return absl::OkStatus();
  }
  StepNumbers numbers;
  numbers.is_write = true;
  numbers.is_trainers_step = is_step;
  numbers.loaded = loaded;
  RecordDecision(options_.group, options_.updates, next, numbers,
                 std::vector<bool>(options_.memory->num_parameters(), false));
  RETURN_IF_ERROR(FaultPoint("write.after-decision"));
  RETURN_IF_ERROR(FinishStaged(next, written, is_step));
  published_ahead_ = -1;
  options_.recorder->Done(number);
  RETURN_IF_ERROR(TakePut(put, AgreedPut(votes)));
  options_.control->result.wanted_save = WantedByAll(votes);  // After a trainers' step.
  PublishResult(absl::OkStatus(), 0);
  return is_step ? GatherAhead() : absl::OkStatus();
}

absl::Status RankEngine::FinishStaged(int64_t next, const StagedArrays& written, bool is_step) {
  ForgetGathered();
  if (is_step) remote_.StepTaken();  // All ranks closed their windows before they voted.
  RETURN_IF_ERROR(ApplyDecided(next));
  if (is_step) {
    ForgetReduced();
    const uint64_t order_hash = order_.hash();
    CommitStep(next);
    options_.gate->ReportStep(Step(next), order_hash);
  } else {
    CommitWrite(next);
  }
  // Units that the trainer has open are not unsharded again, so nothing else would wait.
  RETURN_IF_ERROR(AwaitPeersAt(next));
  for (size_t unit = 0; unit < written.size(); ++unit) {
    if ((written[unit] & Bit(StateArray::kParameter)) == 0) continue;
    if (slots_.HasSlot(unit) && !slots_.IsOpen(unit)) continue;  // Another unit may have the slot.
    RETURN_IF_ERROR(remote_.Refresh(unit, next));
  }
  return absl::OkStatus();
}

void RankEngine::CommitWrite(int64_t next) {
  step_ = next;
  const uint64_t order_hash = order_.hash();
  order_.WriteCommitted();
  ControlPage* control = options_.control;
  PublishProgress(next + 1);
  const Decision& decision = options_.group->decisions[next % 2];
  control->writes.store(decision.writes.load(std::memory_order_relaxed), std::memory_order_relaxed);
  control->trained_step.store(decision.trained_step.load(std::memory_order_relaxed),
                              std::memory_order_relaxed);
  control->committed_step.store(next, std::memory_order_release);
  options_.gate->ReportStep(Step(next), order_hash);
}

}  // namespace tessera
