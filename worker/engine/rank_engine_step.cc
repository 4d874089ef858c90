// The step of RankEngine: vote, decide, update, publish (see group_page.h for what survives).
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/engine/rank_engine.h"
#include "worker/engine/step_vote.h"

namespace tessera {
namespace {

// How long a reader of the state may hold a step up. Half of the job's timeout at most, since the
// other ranks wait for this one.
constexpr absl::Duration kHoldPatience = absl::Seconds(30);

}  // namespace

std::byte* RankEngine::ReducedGradient(int unit) const {
  return options_.state + options_.memory->ReducedGradientOffsetBytes() +
         options_.memory->units()[unit].shard_offset_bytes;
}

Values RankEngine::ReducedValues(int unit) const {
  const int64_t count = slices_[unit][options_.rank.value()].size();
  return {ReducedGradient(unit), count, FullDTypeOf(unit)};
}

absl::Status RankEngine::MeasureReduced(int unit, RankKernels* kernels) {
  kernels->Measure(ReducedValues(unit));
  return kernels->TakeStats(&stats_[unit]);
}

absl::StatusOr<double> RankEngine::NormPart(double p) {
  for (const ShardSegment& segment : optimizer_.segments()) {
    if (!segment.requires_grad || !reduced_[segment.unit] || IsReplica(segment.unit)) continue;
    const std::byte* gradient = options_.state + options_.memory->ReducedGradientOffsetBytes() +
                                segment.state_begin_elements * SizeBytes(segment.dtype);
    options_.kernels->AddToNormPart(ConstValues(gradient, segment.numel, segment.dtype), p);
  }
  return options_.kernels->TakeNormPart();
}

absl::StatusOr<Vote> RankEngine::VoteFor(int64_t step, double norm_p) {
  Vote vote;
  vote.step = step;
  vote.first_changed_unit = watch_.FindChanged(step_);
  for (size_t unit = 0; unit < stats_.size(); ++unit) {
    if (!reduced_[unit]) continue;  // None of its parameters has a gradient.
    // Replicas of a slice have the same gradient; one of them counts.
    if (!IsReplica(unit)) vote.norm_part += stats_[unit].sum_of_squares;
    if (stats_[unit].non_finite && vote.first_non_finite_unit < 0)
      vote.first_non_finite_unit = unit;
    vote.reduced_units_hash = vote.reduced_units_hash * 31 + unit + 1;
  }
  if (norm_p == 2) return vote;
  ASSIGN_OR_RETURN(vote.norm_part, NormPart(norm_p));
  return vote;
}

absl::StatusOr<Tally> RankEngine::CountVotes(const Op& op,
                                             const std::vector<HyperParameters>& groups,
                                             const ClipRule& clip, uint64_t put) {
  ASSIGN_OR_RETURN(Vote vote, VoteFor(step_ + 1, clip.p));
  vote.put = put;
  vote.weight = op.weight;
  vote.numbers_hash = HashNumbers(op, groups, clip);
  vote.wanted_save = options_.files->wanted_save();
  const int num_parameters = options_.memory->num_parameters();
  const std::byte* touched = options_.own_gradients + options_.memory->touched_offset_bytes();
  const std::vector<std::byte> ballot = EncodeBallot(vote, touched, num_parameters);
  RETURN_IF_ERROR(FaultPoint("step.before-vote"));
  std::vector<std::byte> ballots(ballot.size() * options_.config->world_size);
  RETURN_IF_ERROR(options_.communicator->AllGather(ballot.data(), ballots.data(), ballot.size()));
  RETURN_IF_ERROR(FaultPoint("step.after-vote"));
  return CountBallots(ballots, op.gradient_divisor, clip, *options_.layout, num_parameters);
}

absl::Status RankEngine::AwaitHold() {
  if (options_.files != nullptr) options_.files->AwaitOverwrite(step_ + 1);
  const absl::Duration patience = std::min(kHoldPatience, options_.config->collective_timeout / 2);
  const absl::StatusOr<WriteBegin> begin =
      BeginWriting(&options_.group->ranks[LocalIndex()].hold, step_ + 1, AbortFlag(&interrupt_),
                   SteadyNow() + patience);
  if (!begin.ok()) return Interruption();
  if (*begin == WriteBegin::kBrokeHold) {
    TESSERA_LOG(WARNING, "rank {}: a reader of step {} took longer than {}: its copy is void",
                options_.rank.value(), step_ - 1, absl::FormatDuration(patience));
  }
  return absl::OkStatus();
}

absl::Status RankEngine::RunStep(const Op& op) {
  StepNumbers numbers;
  absl::StatusOr<std::vector<HyperParameters>> groups =
      GroupsOf(op, *options_.control, *options_.config);
  RETURN_IF_ERROR(Annotate(groups.status(), absl::StrCat("rank ", options_.rank.value())));
  numbers.groups = *std::move(groups);
  const int64_t number =
      options_.recorder->Enqueued(step_ + 1, order_.sequence(), OpKind::kStep, -1, 0);
  RETURN_IF_ERROR(Ordered(OpKind::kStep, -1, options_.memory->shard_numel(), DType::kFp32));
  RETURN_IF_ERROR(AwaitReductions());
  options_.recorder->Started(number);

  const int64_t next = step_ + 1;
  RETURN_IF_ERROR(AwaitHold());
  const uint64_t put = OfferPut();
  const ClipRule clip = {options_.config->gradient_norm_p, options_.config->max_gradient_norm};
  ASSIGN_OR_RETURN(const Tally tally, CountVotes(op, numbers.groups, clip, put));
  if (!tally.status.ok()) {
    ForgetReduced();
    options_.recorder->Done(number);
    RETURN_IF_ERROR(TakePut(put, tally.non_finite ? tally.put : 0));  // It may be what helps.
    PublishResult(tally.status, 0, tally.non_finite);
    return absl::OkStatus();
  }
  assumed_groups_ = numbers.groups;
  numbers.gradient_scale = tally.gradient_scale;
  numbers.gradient_norm = tally.gradient_norm;
  RecordDecision(options_.group, options_.updates, next, numbers, tally.touched);
  RETURN_IF_ERROR(FaultPoint("step.after-decision"));
  ForgetGathered();
  remote_.StepTaken();  // All ranks closed their windows before they voted.
  RETURN_IF_ERROR(ApplyDecided(next));
  ForgetReduced();
  options_.recorder->Done(number);
  const uint64_t order_hash = order_.hash();
  CommitStep(next);
  options_.control->result.wanted_save = tally.wanted_save;
  if (put == 0) PublishResult(absl::OkStatus(), tally.gradient_norm);
  // The trainer need not wait for this.
  options_.gate->ReportStep(Step(next), order_hash);
  if (put != 0) {
    RETURN_IF_ERROR(TakePut(put, tally.put));
    PublishResult(absl::OkStatus(), tally.gradient_norm);
  }
  RETURN_IF_ERROR(GatherAhead());
  watch_.Written(next);
  return absl::OkStatus();
}

void RankEngine::CommitStep(int64_t next) {
  step_ = next;
  order_.StepCommitted();
  PublishProgress(next + 1);
  options_.control->within_step.store(0, std::memory_order_relaxed);
  options_.control->trained_step.store(
      options_.group->decisions[next % 2].trained_step.load(std::memory_order_relaxed),
      std::memory_order_relaxed);
  options_.control->committed_step.store(next, std::memory_order_release);
}

absl::Status RankEngine::TallyGradients(const Op& op) {
  const absl::StatusOr<std::vector<HyperParameters>> groups =
      GroupsOf(op, *options_.control, *options_.config);
  RETURN_IF_ERROR(Annotate(groups.status(), absl::StrCat("rank ", options_.rank.value())));
  const absl::StatusOr<ClipRule> clip = TallyClipRule(*options_.control, *options_.config);
  RETURN_IF_ERROR(Annotate(clip.status(), absl::StrCat("rank ", options_.rank.value())));
  const int64_t number =
      options_.recorder->Enqueued(step_ + 1, order_.sequence(), OpKind::kTally, -1, 0);
  RETURN_IF_ERROR(Ordered(OpKind::kTally, -1, options_.memory->shard_numel(), DType::kFp32));
  RETURN_IF_ERROR(AwaitReductions());
  options_.recorder->Started(number);
  ASSIGN_OR_RETURN(const Tally tally, CountVotes(op, *groups, *clip, /*put=*/0));
  options_.recorder->Done(number);
  if (!tally.status.ok()) {
    // A trainer that clips by this continues to the step, which finds the same.
    const bool step_follows = tally.non_finite && options_.control->tally_norm_p != 0;
    if (!step_follows) ForgetReduced();
    PublishResult(tally.status, 0, tally.non_finite);
    return absl::OkStatus();
  }
  std::byte* touched = options_.own_gradients + options_.memory->touched_offset_bytes();
  for (size_t p = 0; p < tally.touched.size(); ++p) touched[p] = std::byte{tally.touched[p]};
  options_.control->result.gradient_scale = tally.gradient_scale;
  options_.control->result.clip_coefficient = tally.clip_coefficient;
  PublishResult(absl::OkStatus(), tally.gradient_norm);
  return absl::OkStatus();
}

absl::Status RankEngine::ApplyDecided(int64_t step) {
  StepNumbers numbers =
      LoadDecision(*options_.group, options_.updates, step, options_.config->groups.size());
  if (numbers.put != 0) RememberPut(options_.group, numbers.put, step);
  if (numbers.is_write) {
    optimizer_.ApplyStaged(step, numbers.loaded.has_value(), published_ahead_ == step);
    // Whatever was loaded may hold momentum.
    if (numbers.loaded.has_value()) options_.group->ranks[LocalIndex()].has_momentum.store(1);
  } else {
    std::atomic<uint32_t>& has_momentum = options_.group->ranks[LocalIndex()].has_momentum;
    for (const HyperParameters& group : numbers.groups) {
      if (group.momentum != 0) has_momentum.store(1, std::memory_order_relaxed);
    }
    const OptimizerStep update = {step, numbers.gradient_scale, std::move(numbers.groups),
                                  options_.updates.Load(step),
                                  has_momentum.load(std::memory_order_relaxed) != 0};
    optimizer_.Apply(update, EarlyUnits(update));
  }
  RETURN_IF_ERROR(options_.kernels->Finish());
  if (options_.buffers != nullptr) options_.buffers->Publish(step);
  (void)FaultPoint(numbers.put != 0   ? "put.before-publish"
                   : numbers.is_write ? "write.before-publish"
                                      : "step.before-publish");
  PublishApplied(options_.group, LocalIndex(), step);
  return absl::OkStatus();
}

}  // namespace tessera
