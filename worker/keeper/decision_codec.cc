#include "worker/keeper/decision_codec.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_config.h"
#include "proto/executor.pb.h"

namespace tessera {
namespace {

absl::Status Refusal(int64_t step, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat("the decision of step ", step, " did not reach this worker whole: ", why));
}

absl::StatusOr<StepNumbers> DecodeNumbers(const v1::StepDecision& decision, int64_t step) {
  // All of this came from another worker. It is written into memory from which steps are made, so
  // each number is checked.
  StepNumbers numbers;
  numbers.gradient_scale = decision.gradient_scale();
  numbers.gradient_norm = decision.gradient_norm();
  numbers.is_write = decision.is_write();
  numbers.is_trainers_step = decision.is_trainers_step();
  // Not a number is refused too. An infinite scale would make NaN of a gradient of zero.
  if (!(numbers.gradient_scale >= 0) || std::isinf(numbers.gradient_scale))
    return Refusal(step, "its gradient scale is none");
  if (!(numbers.gradient_norm >= 0)) return Refusal(step, "its gradient norm is none");
  if (numbers.is_trainers_step && !numbers.is_write)
    return Refusal(step, "a step of the trainers' own without values");
  numbers.put = decision.put();
  if (numbers.put != 0 && (!numbers.is_write || numbers.is_trainers_step))
    return Refusal(step, "a put that is not a write");
  // As many as the job has: RecordDecision compared the counts.
  for (const v1::StepDecision::Group& from : decision.groups()) {
    HyperParameters& to = numbers.groups.emplace_back();
    to.learning_rate = from.learning_rate();
    to.beta1 = from.beta1();
    to.beta2 = from.beta2();
    to.epsilon = from.epsilon();
    to.weight_decay = from.weight_decay();
    to.momentum = from.momentum();
    const absl::Status valid = ValidateHyperParameters(to, numbers.groups.size() - 1);
    if (!valid.ok()) return Refusal(step, valid.message());
  }
  return numbers;
}

absl::StatusOr<TrainingProgress> DecodeLoaded(const v1::StepDecision& decision, int64_t step,
                                              int num_parameters) {
  TrainingProgress loaded;
  loaded.step = decision.loaded().trained_step();
  loaded.update_counts.assign(decision.loaded().update_counts().begin(),
                              decision.loaded().update_counts().end());
  if (!decision.is_write() || decision.is_trainers_step())
    return Refusal(step, "moments without a write");
  if (loaded.step < 0 || decision.loaded().update_counts_size() != num_parameters)
    return Refusal(step, "it has the training progress of another job");
  return loaded;
}

absl::StatusOr<std::vector<bool>> DecodeTouched(const v1::StepDecision& decision, int64_t step,
                                                size_t num_parameters) {
  std::vector<bool> touched(decision.touched().size() * 8);
  for (size_t i = 0; i < touched.size(); ++i) touched[i] = decision.touched()[i / 8] >> i % 8 & 1;
  // The last byte has bits beyond the last parameter.
  const auto end = touched.begin() + num_parameters;
  if (std::find(end, touched.end(), true) != touched.end())
    return Refusal(step, "a gradient of a parameter that the job does not have");
  if (decision.is_write() && std::find(touched.begin(), end, true) != end)
    return Refusal(step, "a write with a gradient");
  touched.resize(num_parameters);
  return touched;
}

}  // namespace

std::string EncodeDecision(const GroupPage& group, const UpdateCounts& counts, int num_groups) {
  // Called between epochs, when no executor can decide another step.
  const int64_t step = group.decided_step.load();
  // Step 0 is made of the first values, on which nobody votes.
  if (step < 1) return "";
  const StepNumbers numbers = LoadDecision(group, counts, step, num_groups);
  v1::StepDecision decision;
  decision.set_step(step);
  decision.set_gradient_scale(numbers.gradient_scale);
  decision.set_gradient_norm(numbers.gradient_norm);
  decision.set_is_write(numbers.is_write);
  decision.set_is_trainers_step(numbers.is_trainers_step);
  decision.set_put(numbers.put);
  for (const HyperParameters& from : numbers.groups) {
    v1::StepDecision::Group* to = decision.add_groups();
    to->set_learning_rate(from.learning_rate);
    to->set_beta1(from.beta1);
    to->set_beta2(from.beta2);
    to->set_epsilon(from.epsilon);
    to->set_weight_decay(from.weight_decay);
    to->set_momentum(from.momentum);
  }
  std::vector<int64_t> updates = counts.Load(step);
  if (numbers.loaded.has_value()) {
    decision.mutable_loaded()->set_trained_step(numbers.loaded->step);
    for (const int64_t count : numbers.loaded->update_counts)
      decision.mutable_loaded()->add_update_counts(count);
    // A load sets the counts by itself. A write in which parameters have gradients is refused.
    updates.assign(updates.size(), 0);
  }
  std::string touched((updates.size() + 7) / 8, '\0');
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i] > 0) touched[i / 8] = static_cast<char>(touched[i / 8] | 1 << i % 8);
  }
  decision.set_touched(std::move(touched));
  return decision.SerializeAsString();
}

absl::Status RecordDecision(const std::string& bytes, int64_t step, GroupPage* group,
                            const UpdateCounts& counts, int num_groups) {
  v1::StepDecision decision;
  const size_t num_parameters = counts.num_parameters();
  // The size of `touched` must fit the job: DecodeTouched relies on it.
  if (!decision.ParseFromString(bytes) || decision.step() != step ||
      decision.groups_size() != num_groups ||
      decision.touched().size() != (num_parameters + 7) / 8) {
    return Refusal(step, "it is malformed, or of another step or job");
  }
  // The decision before it is what its counts build on.
  if (group->decided_step.load() != step - 1) {
    return absl::DataLossError(absl::StrCat("this worker is at step ", group->decided_step.load(),
                                            ", from which it cannot resume at step ", step));
  }
  ASSIGN_OR_RETURN(StepNumbers numbers, DecodeNumbers(decision, step));
  if (decision.has_loaded()) {
    ASSIGN_OR_RETURN(numbers.loaded, DecodeLoaded(decision, step, num_parameters));
  }
  ASSIGN_OR_RETURN(const std::vector<bool> touched, DecodeTouched(decision, step, num_parameters));
  // Nothing is written unless all of it is valid.
  RecordDecision(group, counts, step, numbers, touched);
  return absl::OkStatus();
}

}  // namespace tessera
