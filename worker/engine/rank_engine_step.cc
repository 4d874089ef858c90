// The step of RankEngine: vote, decide, update, publish (see group_page.h for what survives).
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/engine/rank_engine.h"

namespace tessera {
namespace {

// Added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does.
constexpr double kClipEpsilon = 1e-6;

// What each rank brings to a step; travels as bytes between ranks of one build.
struct Vote {
  double sum_of_squares = 0;
  int64_t step = 0;
  uint64_t hyper_parameters_hash = 0;
  int64_t first_non_finite_unit = -1;
  uint64_t reduced_units_hash = 0;
};

struct Tally {
  double gradient_norm = 0;
  absl::Status status;
};

// Adds in rank order, so that every rank gets the same bits.
Tally Count(const std::vector<Vote>& votes, const ModelLayout& layout) {
  Tally tally;
  double sum = 0;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const Vote& vote = votes[rank];
    sum += vote.sum_of_squares;
    if (!tally.status.ok()) continue;
    if (vote.step != votes[0].step) {
      tally.status = absl::FailedPreconditionError(absl::StrCat(
          "rank 0 is at step ", votes[0].step, ", rank ", rank, " at step ", vote.step));
    } else if (vote.hyper_parameters_hash != votes[0].hyper_parameters_hash) {
      tally.status = absl::InvalidArgumentError(absl::StrCat(
          "step ", vote.step, ": ranks 0 and ", rank,
          " gave different hyper-parameters (a learning rate, its scale, or another)"));
    } else if (vote.reduced_units_hash != votes[0].reduced_units_hash) {
      tally.status = absl::FailedPreconditionError(
          absl::StrCat("step ", vote.step, ": ranks 0 and ", rank, " reduced different units"));
    } else if (vote.first_non_finite_unit >= 0) {
      tally.status = absl::FailedPreconditionError(
          absl::StrCat("step ", vote.step, " was not taken: NaN or Inf in the gradient of unit '",
                       layout.units[vote.first_non_finite_unit].flat.unit_name(),
                       "' in the shard of rank ", rank));
    }
  }
  tally.gradient_norm = std::sqrt(sum);
  return tally;
}

double ClipScale(double max_norm, double norm) {
  if (max_norm <= 0) return 1.0;
  return std::min(1.0, max_norm / (norm + kClipEpsilon));
}

// FNV-1a over the bits of all numbers.
uint64_t Hash(const std::vector<HyperParameters>& groups) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const HyperParameters& g : groups) {
    for (const double x :
         {g.learning_rate, g.beta1, g.beta2, g.epsilon, g.weight_decay, g.momentum}) {
      uint64_t bits;
      std::memcpy(&bits, &x, sizeof(bits));
      for (int i = 0; i < 8; ++i) hash = (hash ^ (bits >> (8 * i) & 0xff)) * 0x100000001b3;
    }
  }
  return hash;
}

}  // namespace

absl::StatusOr<std::vector<HyperParameters>> RankEngine::GroupsOf(const Op& op) const {
  const std::vector<ParamGroup>& own = options_.config->groups;
  if (!std::isfinite(op.learning_rate_scale) || op.learning_rate_scale < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options_.rank.value(), ": learning-rate scale ", op.learning_rate_scale));
  }
  if (op.num_groups != 0 && op.num_groups != own.size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options_.rank.value(),
                                                   ": hyper-parameters of ", op.num_groups,
                                                   " param groups, the job has ", own.size()));
  }
  std::vector<HyperParameters> groups;
  for (size_t i = 0; i < own.size(); ++i) {
    const HyperParameters& job_numbers = own[i];
    groups.push_back(op.num_groups == 0 ? job_numbers : options_.control->step_groups[i]);
    groups.back().learning_rate *= op.learning_rate_scale;
    RETURN_IF_ERROR(ValidateHyperParameters(groups.back(), i));
  }
  return groups;
}

absl::Status RankEngine::RunStep(const Op& op) {
  StepNumbers numbers;
  ASSIGN_OR_RETURN(numbers.groups, GroupsOf(op));
  const int64_t number =
      options_.recorder->Enqueued(step_ + 1, order_.sequence(), OpKind::kStep, -1, 0);
  RETURN_IF_ERROR(Ordered(OpKind::kStep, -1, options_.memory->shard_numel(), DType::kFp32));
  RETURN_IF_ERROR(AwaitReductions());
  options_.recorder->Started(number);

  const int64_t next = step_ + 1;
  Vote vote;
  vote.step = next;
  vote.hyper_parameters_hash = Hash(numbers.groups);
  for (size_t unit = 0; unit < stats_.size(); ++unit) {
    if (!reduced_[unit]) {
      // A unit without a gradient this step takes a zero one.
      const UnitMemory& placed = options_.memory->units()[unit];
      float* shard =
          reinterpret_cast<float*>(options_.state + options_.memory->ReducedGradientOffsetBytes());
      std::fill_n(shard + placed.shard_offset_elements,
                  options_.layout->units[unit].shards.shard_numel(), 0.0f);
      continue;
    }
    vote.sum_of_squares += stats_[unit].sum_of_squares;
    if (stats_[unit].non_finite && vote.first_non_finite_unit < 0)
      vote.first_non_finite_unit = unit;
    vote.reduced_units_hash = vote.reduced_units_hash * 31 + unit + 1;
  }
  RETURN_IF_ERROR(FaultPoint("step.before-vote"));
  std::vector<Vote> votes(options_.config->world_size);
  RETURN_IF_ERROR(options_.communicator->AllGather(&vote, votes.data(), sizeof(Vote)));
  RETURN_IF_ERROR(FaultPoint("step.after-vote"));
  const Tally tally = Count(votes, *options_.layout);
  ForgetReduced();
  if (!tally.status.ok()) {
    options_.recorder->Done(number);
    PublishResult(tally.status, tally.gradient_norm);
    return absl::OkStatus();
  }
  numbers.gradient_scale = ClipScale(options_.config->max_gradient_norm, tally.gradient_norm);
  numbers.gradient_norm = tally.gradient_norm;
  RecordDecision(options_.group, next, numbers);
  RETURN_IF_ERROR(FaultPoint("step.after-decision"));
  ApplyDecided(next);
  step_ = next;
  options_.recorder->Done(number);
  const uint64_t order_hash = order_.hash();
  order_.StepCommitted();
  options_.control->progress_step.store(next + 1, std::memory_order_relaxed);
  options_.control->progress_sequence.store(0, std::memory_order_relaxed);
  options_.control->committed_step.store(next, std::memory_order_release);
  PublishResult(absl::OkStatus(), tally.gradient_norm);
  // The trainer need not wait for this.
  options_.gate->ReportStep(Step(next), order_hash);
  return GatherAhead();
}

void RankEngine::ApplyDecided(int64_t step) {
  StepNumbers numbers = LoadDecision(*options_.group, step, options_.config->groups.size());
  optimizer_.Apply({step, numbers.gradient_scale, std::move(numbers.groups)});
  (void)FaultPoint("step.before-publish");
  PublishApplied(options_.group, options_.rank.value(), step);
}

}  // namespace tessera
