#include "worker/engine/step_vote.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr int kBits = 8;

absl::Status CheckAgreement(const Vote& first, const Vote& vote, int rank,
                            const ModelLayout& layout, Tally* tally) {
  const std::string step = absl::StrCat("step ", vote.step);
  if (vote.step != first.step) {
    // Most basic first: later comparisons mean nothing if the ranks are at different steps.
    return absl::FailedPreconditionError(
        absl::StrCat("rank 0 is at step ", first.step, ", rank ", rank, " at ", step));
  }
  if (vote.numbers_hash != first.numbers_hash) {
    return absl::InvalidArgumentError(absl::StrCat(
        step, ": ranks 0 and ", rank,
        " gave different hyper-parameters (a learning rate, its scale, the gradient's divisor, "
        "whether there is a weight, how the gradient is clipped, or another); a trainer that was "
        "started again has to bring its learning-rate schedule to this step"));
  }
  if (vote.reduced_units_hash != first.reduced_units_hash) {
    return absl::FailedPreconditionError(
        absl::StrCat(step, ": ranks 0 and ", rank, " reduced different units"));
  }
  // Last: training goes on from a non-finite gradient, but not from the ranks' disagreement.
  if (vote.first_non_finite_unit >= 0) {
    tally->non_finite = true;
    return absl::FailedPreconditionError(
        absl::StrCat(step, " was not taken: NaN or Inf in the gradient of unit '",
                     layout.units[vote.first_non_finite_unit].flat.unit_name(),
                     "' in the shard of rank ", rank));
  }
  return absl::OkStatus();
}

absl::Status ShardsChanged(const Vote& vote, int rank, const ModelLayout& layout) {
  return absl::DataLossError(absl::StrCat("step ", vote.step, " was not taken: bits of unit '",
                                          layout.units[vote.first_changed_unit].flat.unit_name(),
                                          "' in the shard of rank ", rank, " changed since step ",
                                          vote.step - 1,
                                          " wrote them: the memory of its worker is faulty, or "
                                          "something else wrote to it; make the job "
                                          "again from a checkpoint on another worker"));
}

// From the mean over the ranks to what the trainers asked for.
absl::StatusOr<double> UnclippedScale(const std::vector<Vote>& votes, double divisor) {
  double scale = 1.0 / divisor;
  if (votes[0].weight >= 0) {
    // In rank order, so that the sum has the same bits everywhere.
    double total = 0;
    for (const Vote& vote : votes) total += vote.weight;
    // Written so that a NaN is refused too.
    if (!(total > 0) || std::isinf(total)) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", votes[0].step, ": the ranks' weights add up to ", total));
    }
    scale = static_cast<double>(votes.size()) / total / divisor;
  }
  if (std::isfinite(scale)) return scale;
  return absl::InvalidArgumentError(absl::StrCat(
      "step ", votes[0].step, ": gradient divisor ", divisor,
      " is too small, or the ranks' weights are: the gradient's scale would be infinite"));
}

}  // namespace

int64_t BallotBytes(int num_parameters) {
  return sizeof(Vote) + (num_parameters + kBits - 1) / kBits;
}

std::vector<std::byte> EncodeBallot(const Vote& vote, const std::byte* touched,
                                    int num_parameters) {
  std::vector<std::byte> ballot(BallotBytes(num_parameters));
  std::memcpy(ballot.data(), &vote, sizeof(vote));
  for (int p = 0; p < num_parameters; ++p) {
    if (touched[p] != std::byte{0}) ballot[sizeof(Vote) + p / kBits] |= std::byte{1} << (p % kBits);
  }
  return ballot;
}

Tally CountBallots(const std::vector<std::byte>& ballots, double divisor, const ClipRule& clip,
                   const ModelLayout& layout, int num_parameters) {
  Tally tally;
  tally.touched.assign(num_parameters, false);
  // Each rank sent as many bytes: the all-gather checks that.
  const int64_t ballot_bytes = BallotBytes(num_parameters);
  std::vector<Vote> votes(ballots.size() / ballot_bytes);
  std::vector<double> parts;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const std::byte* ballot = ballots.data() + rank * ballot_bytes;
    std::memcpy(&votes[rank], ballot, sizeof(Vote));
    parts.push_back(votes[rank].norm_part);
    // The put and the save only if all ranks name the same one.
    tally.put = rank == 0 || votes[rank].put == tally.put ? votes[rank].put : 0;
    if (rank == 0) tally.wanted_save = votes[0].wanted_save;
    // A rank that does not know of the request, or is still saving, votes 0: a later step takes
    // it.
    if (votes[rank].wanted_save != tally.wanted_save) tally.wanted_save = 0;
    for (int p = 0; p < num_parameters; ++p) {
      const std::byte bit = ballot[sizeof(Vote) + p / kBits] >> (p % kBits) & std::byte{1};
      // One rank is enough: its share is in the sum that all ranks apply (docs/adr/0012).
      if (bit != std::byte{0}) tally.touched[p] = true;
    }
    if (tally.status.ok())
      tally.status = CheckAgreement(votes[0], votes[rank], rank, layout, &tally);
    // What else is wrong may follow from this.
    if (votes[rank].first_changed_unit >= 0 && !absl::IsDataLoss(tally.status))
      tally.status = ShardsChanged(votes[rank], rank, layout);
  }
  // So that no put is applied to a damaged shard.
  if (absl::IsDataLoss(tally.status)) tally.non_finite = false;
  if (!tally.status.ok()) return tally;
  const absl::StatusOr<double> scale = UnclippedScale(votes, divisor);
  tally.status = scale.status();
  if (!scale.ok()) return tally;
  // The scale is positive, so it may be taken out of the norm.
  tally.gradient_norm = CombineNormParts(parts, clip.p) * *scale;
  tally.clip_coefficient = ClipCoefficient(clip.max_norm, tally.gradient_norm);
  tally.gradient_scale = *scale * tally.clip_coefficient;
  return tally;
}

absl::StatusOr<std::vector<HyperParameters>> GroupsOf(const Op& op, const ControlPage& control,
                                                      const JobConfig& config) {
  // Numbers from shared memory. Each of them ends up in every rank's update.
  if (!std::isfinite(op.learning_rate_scale) || op.learning_rate_scale < 0)
    return absl::InvalidArgumentError(absl::StrCat("learning-rate scale ", op.learning_rate_scale));
  if (!std::isfinite(op.gradient_divisor) || op.gradient_divisor <= 0)
    return absl::InvalidArgumentError(absl::StrCat("gradient divisor ", op.gradient_divisor));
  if (!std::isfinite(op.weight))
    return absl::InvalidArgumentError(absl::StrCat("weight ", op.weight));
  if (op.num_groups != 0 && op.num_groups != config.groups.size()) {
    return absl::InvalidArgumentError(absl::StrCat("hyper-parameters of ", op.num_groups,
                                                   " param groups, the job has ",
                                                   config.groups.size()));
  }
  std::vector<HyperParameters> groups;
  for (size_t i = 0; i < config.groups.size(); ++i) {
    const HyperParameters& job_numbers = config.groups[i];
    groups.push_back(op.num_groups == 0 ? job_numbers : control.step_groups[i]);
    groups.back().learning_rate *= op.learning_rate_scale;
    // After the scaling, since the product may be out of range too.
    RETURN_IF_ERROR(ValidateHyperParameters(groups.back(), i));
  }
  return groups;
}

absl::StatusOr<ClipRule> TallyClipRule(const ControlPage& control, const JobConfig& config) {
  const ClipRule asked = {control.tally_norm_p, control.tally_max_norm};
  if (asked.p == 0) return ClipRule{config.gradient_norm_p, config.max_gradient_norm};
  // Written so that a NaN is refused too.
  if (!(asked.p > 0))
    return absl::InvalidArgumentError(absl::StrCat("the gradient's norm by p = ", asked.p));
  if (!(asked.max_norm > 0))
    return absl::InvalidArgumentError(absl::StrCat("a gradient clipped to ", asked.max_norm));
  return asked;
}

uint64_t HashNumbers(const Op& op, const std::vector<HyperParameters>& groups,
                     const ClipRule& clip) {
  uint64_t hash = 0xcbf29ce484222325;
  // By bits: numbers that print alike but differ would make the replicas differ.
  const auto mix = [&hash](double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    for (int i = 0; i < 8; ++i) hash = (hash ^ (bits >> (8 * i) & 0xff)) * 0x100000001b3;
  };
  mix(op.gradient_divisor);
  // Each rank has a weight of its own. Only whether there are any must agree.
  mix(op.weight < 0 ? 0 : 1);
  mix(clip.p);
  mix(clip.max_norm);
  for (const HyperParameters& g : groups) {
    for (const double x :
         {g.learning_rate, g.beta1, g.beta2, g.epsilon, g.weight_decay, g.momentum}) {
      mix(x);
    }
  }
  return hash;
}

}  // namespace tessera
