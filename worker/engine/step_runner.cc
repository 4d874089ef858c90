#include "worker/engine/step_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"

namespace tessera {

StepRunner::StepRunner(const EngineParts& parts)
    : context_(parts.context),
      early_(parts.early),
      reductions_(parts.reductions),
      gathers_(parts.gathers),
      versions_(parts.versions),
      puts_(parts.puts),
      // Its finding is kept in the keeper's memory: no later executor takes a step from that
      // version.
      watch_(context_.options.layout, context_.options.config, context_.options.memory,
             context_.options.state, &context_.record().changed_shard) {}

absl::StatusOr<std::vector<HyperParameters>> StepRunner::GroupsOfStep(const Op& op) const {
  const RankEngineOptions& options = context_.options;
  absl::StatusOr<std::vector<HyperParameters>> groups =
      GroupsOf(op, *options.control, *options.config);
  RETURN_IF_ERROR(Annotate(groups.status(), absl::StrCat("rank ", options.rank.value())));
  return groups;
}

absl::StatusOr<Tally> StepRunner::CountVotes(const Op& op,
                                             const std::vector<HyperParameters>& groups,
                                             const ClipRule& clip, uint64_t put) {
  const RankEngineOptions& options = context_.options;
  Vote vote;
  vote.step = context_.order.step() + 1;
  // Before the vote: an update of a changed shard would spread the damage to every rank.
  vote.first_changed_unit = watch_.FindChanged(context_.order.step());
  RETURN_IF_ERROR(reductions_.Measure(clip.p, &vote));
  vote.put = put;
  vote.weight = op.weight;
  vote.numbers_hash = HashNumbers(op, groups, clip);
  // Read once: it may change during the step, and the result must say what was voted on.
  vote.wanted_save = options.files->wanted_save();
  const int num_parameters = options.memory->num_parameters();
  // One message with everything that ranks must agree on.
  const std::vector<std::byte> ballot = EncodeBallot(vote, context_.Touched(), num_parameters);
  RETURN_IF_ERROR(FaultPoint("step.before-vote"));
  std::vector<std::byte> ballots(ballot.size() * options.config->world_size);
  // Every rank that completes this counts the same ballots, and comes to the same result.
  RETURN_IF_ERROR(options.communicator->AllGather(ballot.data(), ballots.data(), ballot.size()));
  RETURN_IF_ERROR(FaultPoint("step.after-vote"));
  return CountBallots(ballots, op.gradient_divisor, clip, *options.layout, num_parameters);
}

void StepRunner::ForgetGradients() {
  reductions_.ForgetAll();
  versions_.ForgetStaged();
}

absl::Status StepRunner::Run(const Op& op) {
  const RankEngineOptions& options = context_.options;
  ASSIGN_OR_RETURN(std::vector<HyperParameters> groups, GroupsOfStep(op));
  const int64_t number = context_.EnqueueRecord(OpKind::kStep, -1, 0);
  RETURN_IF_ERROR(
      context_.order.Issue(OpKind::kStep, -1, options.memory->shard_numel(), DType::kFp32));
  // Statistics and gradients are complete only when the stream has ended.
  RETURN_IF_ERROR(reductions_.Await());
  options.recorder->Started(number);

  // Before the vote: a rank that voted may not wait for a reader of the state any more.
  RETURN_IF_ERROR(versions_.AwaitRoom());
  // Before the vote, which says whether all ranks have the same one.
  const uint64_t put = puts_.Offer();
  const ClipRule clip = {options.config->gradient_norm_p, options.config->max_gradient_norm};
  ASSIGN_OR_RETURN(const Tally tally, CountVotes(op, groups, clip, put));
  // All ranks count the same ballots: all forget their gradients, and none waits for another.
  if (!tally.status.ok()) {
    ForgetGradients();
    options.recorder->Done(number);
    RETURN_IF_ERROR(puts_.Apply(put, tally.non_finite ? tally.put : 0));  // It may be what helps.
    context_.trainer.PublishResult(tally.status, 0, tally.non_finite);
    return absl::OkStatus();
  }
  // The next early updates assume that the hyper-parameters stay as they are.
  early_.Assume(groups);
  StepNumbers numbers;
  numbers.groups = std::move(groups);
  numbers.gradient_scale = tally.gradient_scale;
  numbers.gradient_norm = tally.gradient_norm;
  return Take(number, put, tally, std::move(numbers));
}

absl::Status StepRunner::Take(int64_t number, uint64_t put, const Tally& tally,
                              StepNumbers numbers) {
  const RankEngineOptions& options = context_.options;
  const int64_t next = context_.order.step() + 1;
  // From here on the step completes on every rank, whichever process dies.
  // In memory that outlives all executors, and before a byte of the new version counts.
  RecordDecision(options.group, options.updates, next, numbers, tally.touched);
  RETURN_IF_ERROR(FaultPoint("step.after-decision"));
  // Before parameters change in place: no window may count as gathered for them.
  gathers_.ParametersChange(/*windows_are_closed=*/true);
  RETURN_IF_ERROR(versions_.Apply(next));
  ForgetGradients();
  options.recorder->Done(number);
  options.recorder->StepEnded(tally.gradient_norm);
  // Before the result: a trainer that has the result finds the committed step in its page.
  const uint64_t order_hash = context_.order.CommitStep(next);
  // PublishResult makes it visible.
  context_.trainer.result().wanted_save = tally.wanted_save;
  if (put == 0) context_.trainer.PublishResult(absl::OkStatus(), tally.gradient_norm);
  // The trainer need not wait for this.
  // Applied before it is reported: the coordinator may count on it as committed.
  options.gate->ReportStep(Step(next), order_hash);
  // The trainer waits for the put as well: it is a version of its own, between two of its steps.
  if (put != 0) {
    RETURN_IF_ERROR(puts_.Apply(put, tally.put));
    context_.trainer.PublishResult(absl::OkStatus(), tally.gradient_norm);
  }
  // It waits for the peers' new version, which the trainer need not do before its next forward.
  RETURN_IF_ERROR(gathers_.GatherAhead());
  // After the trainer was told, so that the sums cost it nothing.
  watch_.Written(next);
  return absl::OkStatus();
}

absl::Status StepRunner::TallyGradients(const Op& op) {
  const RankEngineOptions& options = context_.options;
  ASSIGN_OR_RETURN(const std::vector<HyperParameters> groups, GroupsOfStep(op));
  const absl::StatusOr<ClipRule> clip = TallyClipRule(*options.control, *options.config);
  RETURN_IF_ERROR(Annotate(clip.status(), absl::StrCat("rank ", options.rank.value())));
  const int64_t number = context_.EnqueueRecord(OpKind::kTally, -1, 0);
  RETURN_IF_ERROR(
      context_.order.Issue(OpKind::kTally, -1, options.memory->shard_numel(), DType::kFp32));
  RETURN_IF_ERROR(reductions_.Await());
  options.recorder->Started(number);
  ASSIGN_OR_RETURN(const Tally tally, CountVotes(op, groups, *clip, /*put=*/0));
  options.recorder->Done(number);
  if (!tally.status.ok()) {
    // A trainer that clips by this continues to the step, which finds the same.
    const bool step_follows = tally.non_finite && options.control->tally_norm_p != 0;
    if (!step_follows) ForgetGradients();
    context_.trainer.PublishResult(tally.status, 0, tally.non_finite);
    return absl::OkStatus();
  }
  // Ranks whose data did not touch a parameter learn that others' did.
  // Back into the trainer's bytes, from which the vote of the step that follows is made.
  std::byte* touched = context_.Touched();
  for (size_t p = 0; p < tally.touched.size(); ++p) touched[p] = std::byte{tally.touched[p]};
  OpResult& result = context_.trainer.result();
  result.gradient_scale = tally.gradient_scale;
  result.clip_coefficient = tally.clip_coefficient;
  context_.trainer.PublishResult(absl::OkStatus(), tally.gradient_norm);
  return absl::OkStatus();
}

}  // namespace tessera
