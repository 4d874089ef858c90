#include "client/session/step_protocol.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "client/session/buffer_hooks.h"

namespace tessera {

// Here as in the executor, so that a mistake is an error of this call and not of the epoch.
absl::Status StepProtocol::CheckOptions(const StepOptions& options) const {
  if (!std::isfinite(options.learning_rate_scale) || options.learning_rate_scale < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning-rate scale ", options.learning_rate_scale));
  }
  if (!std::isfinite(options.gradient_divisor) || options.gradient_divisor <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient divisor ", options.gradient_divisor, " is not above 0"));
  }
  // Written so that a NaN is refused too.
  if (options.weight.has_value() && !(std::isfinite(*options.weight) && *options.weight >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("weight ", *options.weight, " is below 0"));
  }
  if (!options.groups.empty() && options.groups.size() != client_->options().config.groups.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step with hyper-parameters of ", options.groups.size(),
                     " param groups; the job has ", client_->options().config.groups.size()));
  }
  for (size_t i = 0; i < client_->options().config.groups.size(); ++i) {
    HyperParameters numbers = client_->options().config.groups[i];
    if (!options.groups.empty()) numbers = options.groups[i];
    numbers.learning_rate *= options.learning_rate_scale;
    RETURN_IF_ERROR(ValidateHyperParameters(numbers, i));
  }
  return absl::OkStatus();
}

absl::Status StepProtocol::CompleteGradients() {
  for (int unit = 0; unit < client_->num_units(); ++unit) {
    // Each rank closes its windows before it votes.
    if (!windows_->is_closed(unit)) RETURN_IF_ERROR(windows_->Close(unit));
    if (slots_->gradient(unit).begun) RETURN_IF_ERROR(reducer_->Reduce(unit));
  }
  // After the last reduction: hooks see whole gradients.
  RETURN_IF_ERROR(reducer_->RunAfterHooks());
  // No step of gradients that never came.
  RankKernels* kernels = client_->memory().kernels.get();
  return kernels == nullptr ? absl::OkStatus() : kernels->Finish();
}

absl::Status StepProtocol::Announce(const StepOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  RETURN_IF_ERROR(client_->Submit(OpKind::kAnnounceStep, options));
  // The next operation may overwrite the numbers: they are stored in one place.
  return client_->AwaitConsumed([] { return std::string("the announced step"); });
}

absl::Status StepProtocol::Vote(OpKind kind, StepOptions options, double norm_p, double max_norm) {
  RETURN_IF_ERROR(client_->CheckProcess());
  RETURN_IF_ERROR(CompleteGradients());
  // Clipping that was done is part of the divisor, so that it is in the vote.
  options.gradient_divisor /= slots_->clipping().coefficient;
  // Before the operation that reads them.
  client_->page()->tally_norm_p = norm_p;
  client_->page()->tally_max_norm = max_norm;
  RETURN_IF_ERROR(client_->Submit(kind, options));
  return client_->AwaitResult(kind);
}

StepResult StepProtocol::Skip() {
  slots_->Forget();
  client_->set_agreed_error(false);
  return StepResult{client_->next_step() - 1, 0, /*skipped=*/true};
}

absl::StatusOr<StepResult> StepProtocol::Step(const StepOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  const absl::Status voted = Vote(OpKind::kStep, options);
  ended_with_epoch_ = !voted.ok() && client_->EpochIsOver();
  RETURN_IF_ERROR(voted);
  // In any case: what was reduced is used up or dropped.
  slots_->Forget();
  const OpResult& result = client_->page()->result;
  if (result.non_finite != 0 && options.skip_non_finite) return Skip();
  RETURN_IF_ERROR(client_->ResultStatus());
  return StepResult{client_->next_step() - 1, result.gradient_norm};
}

absl::StatusOr<double> StepProtocol::ClipGradNorm(double max_norm, double p,
                                                  const StepOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  if (!(max_norm > 0))
    return absl::InvalidArgumentError(
        absl::StrCat("clipping: max_norm ", max_norm, " is not above 0"));
  if (!(p > 0))
    return absl::InvalidArgumentError(absl::StrCat("clipping: p ", p, " is not above 0"));
  if (client_->options().config.optimizer_in_backward) {
    return absl::FailedPreconditionError(
        "clipping needs all gradients, and config.optimizer_in_backward uses each at once");
  }
  RETURN_IF_ERROR(Vote(OpKind::kTally, options, p, max_norm));
  const OpResult& result = client_->page()->result;
  absl::Status status = client_->ResultStatus();
  if (status.ok() && !(result.clip_coefficient > 0)) {
    status = absl::FailedPreconditionError(
        absl::StrCat("clipping: the gradient's norm by p = ", p, " is ", result.gradient_norm));
  }
  // Also after an error: more gradients would make the norm wrong.
  slots_->clipping().done = true;
  if (result.non_finite != 0 && options.skip_non_finite) {  // The step finds it too.
    client_->set_agreed_error(false);
    return std::nan("");
  }
  if (!status.ok()) {
    RETURN_IF_ERROR(slots_->Drop());
    client_->set_agreed_error(true);  // All ranks have it.
    return status;
  }
  slots_->clipping().coefficient *= result.clip_coefficient;
  return result.gradient_norm;
}

absl::Status StepProtocol::RunBody(const std::function<absl::Status()>& step_body) {
  absl::Status status;
  try {
    status = step_body();
  } catch (...) {  // The caller's; the other ranks must not wait for this one meanwhile.
    if (client_->Fail(absl::UnknownError("the step's code threw an exception")).ok())
      (void)client_->Recover();
    throw;
  }
  return client_->Tell(status);
}

absl::Status StepProtocol::Run(const std::function<absl::Status()>& step_body) {
  if (!failed_meanwhile_.ok()) return std::exchange(failed_meanwhile_, absl::OkStatus());
  const int64_t step = client_->next_step();
  if (client_->buffer_hooks() != nullptr && client_->buffer_hooks()->begin_step != nullptr)
    client_->buffer_hooks()->begin_step();
  std::function<absl::Status()> body = step_body;
  while (true) {
    ended_with_epoch_ = false;
    const absl::Status status = RunBody(body);
    // What is left of a body that made no step would be in the next one's.
    if (status.ok() && client_->next_step() == step &&
        (slots_->within_step() || slots_->clipping().done)) {
      const absl::Status dropped = slots_->Drop();
      return absl::IsAborted(dropped) ? client_->Recover() : dropped;  // They went with the epoch.
    }
    if (status.ok()) return status;
    RETURN_IF_ERROR(client_->Recover());
    // Decided before the failure, so it was completed everywhere: running it again would apply the
    // body's batch twice. An error of another rank's code was in the step after it.
    if (client_->next_step() > step && (absl::IsAborted(status) || ended_with_epoch_)) {
      if (!absl::IsAborted(status)) failed_meanwhile_ = status;
      return absl::OkStatus();
    }
    if (!absl::IsAborted(status)) return status;
    TESSERA_LOG(WARNING,
                "job '{}', rank {}: repeats step {} in epoch {}, because it was undone: {}",
                client_->options().job_id, client_->rank(), step, client_->epoch(),
                std::string(status.message()));
    if (client_->buffer_hooks() == nullptr || client_->buffer_hooks()->restore == nullptr) continue;
    body = [&]() -> absl::Status {
      RETURN_IF_ERROR(client_->buffer_hooks()->restore());
      return step_body();
    };
  }
}

}  // namespace tessera
