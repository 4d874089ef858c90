#include "worker/engine/state_writes.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// What each rank brings to a write; travels as bytes between ranks of one build.
struct WriteVote {
  int64_t step = 0;
  uint64_t staged_hash = 0;
  uint64_t put = 0;         // As Vote::put.
  int64_t wanted_save = 0;  // See state_files.h.
};

uint64_t HashStaged(const StagedArrays& units, const std::optional<TrainingProgress>& loaded) {
  uint64_t hash = 0;
  // The added 1 makes zeroes count: a list of them must not have the hash of an empty one.
  for (const uint32_t arrays : units) hash = hash * 31 + arrays + 1;
  if (!loaded.has_value()) return hash;
  for (const int64_t count : loaded->update_counts) hash = hash * 31 + count + 1;
  return hash * 31 + loaded->step + 1;
}

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

StateWrites::StateWrites(const EngineParts& parts)
    : context_(parts.context),
      early_(parts.early),
      reductions_(parts.reductions),
      gathers_(parts.gathers),
      versions_(parts.versions),
      puts_(parts.puts) {
  const RankEngineOptions& options = context_.options;
  initial_progress_ = {0,
                       std::vector<int64_t>(options.memory->num_parameters(), 0),
                       {options.config->groups.begin(), options.config->groups.end()}};
}

absl::Status StateWrites::Initialize(int unit) {
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  RETURN_IF_ERROR(context_.Transit(unit, UnitEvent::kInitialize));
  if (context_.initialized()) {
    return absl::FailedPreconditionError(absl::StrCat("unit '", context_.UnitName(unit),
                                                      "': the job has its initial values already"));
  }
  // Into version 0, which counts for nothing before the barrier of FinishInitialize.
  context_.optimizer.Initialize(unit, context_.OwnSlot(unit));
  RETURN_IF_ERROR(context_.options.kernels->Finish());
  context_.trainer.ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status StateWrites::FinishInitialize() {
  const RankEngineOptions& options = context_.options;
  const int64_t number = options.recorder->Enqueued(
      context_.order.StepUnderWay(), context_.order.sequence(), OpKind::kFinishInitialize, -1, 0);
  RETURN_IF_ERROR(
      context_.order.Issue(OpKind::kFinishInitialize, -1, 0, options.config->compute_dtype));
  options.recorder->Started(number);
  // All ranks write equal values, so it does not matter which comes first.
  RecordInitialProgress(options.group, options.updates, initial_progress_);
  options.buffers->Publish(0);
  RETURN_IF_ERROR(FaultPoint("initialize.before-barrier"));
  // After this barrier all ranks hold version 0. A death before it leaves the job without values.
  RETURN_IF_ERROR(options.communicator->Barrier());
  RETURN_IF_ERROR(FaultPoint("initialize.after-barrier"));
  options.recorder->Done(number);
  // If all executors of this host die before the next store, ranks of other hosts say at the next
  // epoch that there are values (EpochCommunicators::AgreeOnWay).
  options.control->trained_step.store(initial_progress_.step, std::memory_order_relaxed);
  // The group's word outlives the executors; the control page follows it.
  options.group->initialized.store(1, std::memory_order_release);
  options.control->initialized.store(1, std::memory_order_release);
  context_.order.CommitInitialValues();
  context_.trainer.PublishResult(absl::OkStatus());
  return absl::OkStatus();
}

void StateWrites::SetInitialProgress(const TrainingProgress& loaded) {
  initial_progress_.step = loaded.step;
  initial_progress_.update_counts = loaded.update_counts;
  // Loaded moments may hold momentum.
  context_.record().has_momentum.store(1);
}

absl::Status StateWrites::Write(const Op& op) {
  const int unit = op.unit;
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  if (op.array_or_event > static_cast<uint32_t>(StateArray::kSecondMoment))
    return absl::InvalidArgumentError(
        absl::StrCat(OpName(op.kind), " of array ", op.array_or_event));
  // The job's first values, of which version 0 is made.
  const bool first = !context_.initialized();
  RETURN_IF_ERROR(reductions_.Await());  // Units may be updated there, in backward.
  if (!first) RETURN_IF_ERROR(versions_.AwaitRoom());
  StagedArrays& staged = versions_.staged();
  const bool is_begun = std::any_of(staged.begin(), staged.end(), [](uint32_t a) { return a; });
  // Version 0 may hold what an earlier attempt left.
  if (first && !is_begun) context_.optimizer.BeginInitial();
  const auto array = static_cast<StateArray>(op.array_or_event);
  context_.optimizer.Stage(array, unit, context_.OwnSlot(unit),
                           first ? 0 : context_.order.step() + 1);
  RETURN_IF_ERROR(context_.options.kernels->Finish());
  staged[unit] |= StagedBit(array);
  context_.trainer.ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status StateWrites::WriteGradient(int unit) {
  RETURN_IF_ERROR(context_.CheckUnit(unit));
  RETURN_IF_ERROR(reductions_.Await());
  RETURN_IF_ERROR(reductions_.SetFromSlot(unit));
  // Another trainer could not continue from a gradient that only this one knows of.
  context_.options.control->within_step.store(1, std::memory_order_relaxed);
  context_.trainer.ReleaseSlot(unit);
  return absl::OkStatus();
}

absl::Status StateWrites::FinishWrite(const Op& op) {
  const RankEngineOptions& options = context_.options;
  const int64_t number = context_.EnqueueRecord(op.kind, -1, 0);
  std::optional<TrainingProgress> loaded;
  if (op.sets_moments != 0) {
    // DecodeProgress checks what the trainer sent against the job's sizes.
    ASSIGN_OR_RETURN(
        loaded, DecodeProgress(context_.trainer.TakeRequest(), options.memory->num_parameters(),
                               options.config->groups.size()));
  }
  RETURN_IF_ERROR(context_.order.Issue(op.kind, -1, options.memory->shard_numel(), DType::kFp32));
  RETURN_IF_ERROR(reductions_.Await());
  options.recorder->Started(number);
  early_.ForgetAll();
  // Taken away at once: whatever happens now, the next write starts with nothing.
  const StagedArrays written = versions_.staged();
  versions_.ForgetStaged();
  // Nobody votes on first values: the barrier of FinishInitialize takes the place of a decision.
  if (!context_.initialized()) return FinishFirstWrite(number, written, loaded);
  RETURN_IF_ERROR(versions_.AwaitRoom());
  // Each version is complete: what was not written is copied from the version before.
  StageTheRest(written, loaded);
  return Commit(op.kind, number, written, loaded);
}

absl::Status StateWrites::FinishFirstWrite(int64_t number, const StagedArrays& written,
                                           const std::optional<TrainingProgress>& loaded) {
  for (size_t unit = 0; unit < written.size(); ++unit) {
    const bool has_parameters = (written[unit] & StagedBit(StateArray::kParameter)) != 0;
    // First values must cover the whole job, or a rank would train on zeroes.
    if (loaded.has_value() && has_parameters) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "unit '", context_.UnitName(unit), "': write before the job has initial values"));
  }
  context_.options.recorder->Done(number);
  // Before the barrier, after which each rank may read the others' slices.
  context_.optimizer.PublishInitial();
  RETURN_IF_ERROR(context_.options.kernels->Finish());
  SetInitialProgress(*loaded);
  return FinishInitialize();
}

void StateWrites::StageTheRest(const StagedArrays& written,
                               const std::optional<TrainingProgress>& loaded) {
  std::vector<StateArray> arrays = {StateArray::kParameter};
  if (loaded.has_value()) {
    for (const StateArray moment : context_.optimizer.Moments()) arrays.push_back(moment);
  }
  for (size_t unit = 0; unit < written.size(); ++unit) {
    for (const StateArray array : arrays) {
      if ((written[unit] & StagedBit(array)) != 0) continue;
      context_.optimizer.Stage(array, unit, nullptr, context_.order.step() + 1);
    }
  }
}

absl::Status StateWrites::Commit(OpKind kind, int64_t number, const StagedArrays& written,
                                 const std::optional<TrainingProgress>& loaded) {
  const RankEngineOptions& options = context_.options;
  // The executor that finishes the decided write takes the staged values as they are.
  // The decision makes them final, so they must be there before the vote.
  RETURN_IF_ERROR(options.kernels->Finish());
  const int64_t next = context_.order.step() + 1;
  const bool is_step = kind == OpKind::kFinishTrainersStep;
  // Elsewhere a trainer may be in the middle of a forward.
  const uint64_t put = is_step ? puts_.Offer() : 0;
  const WriteVote vote = {next, HashStaged(written, loaded), put, options.files->wanted_save()};
  std::vector<WriteVote> votes(options.config->world_size);
  RETURN_IF_ERROR(FaultPoint("write.before-vote"));
  // Every rank that completes this sees the same votes.
  RETURN_IF_ERROR(options.communicator->AllGather(&vote, votes.data(), sizeof(vote)));
  RETURN_IF_ERROR(FaultPoint("write.after-vote"));
  // All ranks see the same votes, so all refuse: nothing was decided, and no epoch ends.
  if (const absl::Status agreed = CheckVotes(votes); !agreed.ok())
    return Refuse(number, put, agreed);
  StepNumbers numbers;
  numbers.is_write = true;
  numbers.is_trainers_step = is_step;
  numbers.loaded = loaded;
  // From here on the write completes on every rank, whichever process dies.
  RecordDecision(options.group, options.updates, next, numbers,
                 std::vector<bool>(options.memory->num_parameters(), false));
  RETURN_IF_ERROR(FaultPoint("write.after-decision"));
  RETURN_IF_ERROR(Finish(next, written, is_step));
  // After Finish, which applies what was published ahead.
  versions_.SetPublishedAhead(-1);
  options.recorder->Done(number);
  RETURN_IF_ERROR(puts_.Apply(put, AgreedPut(votes)));
  context_.trainer.result().wanted_save = WantedByAll(votes);  // After a trainers' step.
  context_.trainer.PublishResult(absl::OkStatus());
  return is_step ? gathers_.GatherAhead() : absl::OkStatus();
}

absl::Status StateWrites::Refuse(int64_t number, uint64_t put, const absl::Status& why) {
  context_.options.recorder->Done(number);
  context_.options.buffers->DropLoaded();
  RETURN_IF_ERROR(TakeBackPublished());
  // Settles what this rank offered: the next vote offers it again.
  RETURN_IF_ERROR(puts_.Apply(put, 0));
  context_.trainer.PublishResult(why);
  return absl::OkStatus();
}

absl::Status StateWrites::TakeBackPublished() {
  RETURN_IF_ERROR(versions_.TakeBackPublished());
  // Peers may have published where this rank has not; trainers have windows that nothing else would
  // wait for.
  return gathers_.AwaitPeersAt(context_.order.step());
}

absl::Status StateWrites::Finish(int64_t next, const StagedArrays& written, bool is_step) {
  // Before a step's vote all ranks closed their windows; a write leaves them open.
  gathers_.ParametersChange(/*windows_are_closed=*/is_step);
  // Applied before it is reported: the coordinator may count on the step from then on.
  RETURN_IF_ERROR(versions_.Apply(next));
  if (is_step) {
    // The trainers' optimizers have used these gradients.
    reductions_.ForgetAll();
    context_.options.gate->ReportStep(Step(next), context_.order.CommitStep(next));
  } else {
    context_.order.CommitWrite(next);
  }
  std::vector<bool> changed;
  for (const uint32_t arrays : written)
    changed.push_back((arrays & StagedBit(StateArray::kParameter)) != 0);
  return gathers_.Refresh(next, changed);
}

}  // namespace tessera
