#include "worker/engine/state_versions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// How long a reader of the state may hold a step up. Half of the job's timeout at most, since the
// other ranks wait for this one.
constexpr absl::Duration kHoldPatience = absl::Seconds(30);

}  // namespace

StateVersions::StateVersions(EngineContext* context, const EarlyUpdates* early)
    : context_(*context), early_(*early), staged_(context->num_units(), 0) {
  const RankEngineOptions& options = context_.options;
  const auto access = [&](StateImage* image) -> std::unique_ptr<AddressableState> {
    if (image == nullptr) return std::make_unique<InPlaceState>(&context_.optimizer);
    return std::make_unique<ImageState>(image, options.kernels);
  };
  // Two images: a background save may read one while a load or put fills the other.
  saved_ = access(options.images == nullptr ? nullptr : &options.images->saved);
  next_ = access(options.images == nullptr ? nullptr : &options.images->staged);
}

absl::Status StateVersions::Reach(Step resume_step) {
  // Acquire: the version that this rank or its predecessor released with it is visible.
  const int64_t applied = context_.record().applied_step.load(std::memory_order_acquire);
  const int64_t decided = context_.options.group->decided_step.load(std::memory_order_acquire);
  // The step was decided before the last executor died: repeated from version v, to the same bits.
  if (applied + 1 == resume_step.value() && decided == resume_step.value())
    return Apply(resume_step.value());
  // Never more than one step behind: a decided step is kept no longer than that.
  if (applied != resume_step.value()) {
    return absl::InternalError(absl::StrCat("rank ", context_.options.rank.value(), " holds step ",
                                            applied, " and cannot resume at step ",
                                            resume_step.value()));
  }
  return absl::OkStatus();
}

absl::Status StateVersions::PublishIfNot(int64_t step) {
  const RankEngineOptions& options = context_.options;
  // Published parameters are memory that outlived the last executor.
  if (!options.must_publish && IsPublished(*options.group, context_.LocalIndex()))
    return absl::OkStatus();
  // A job without values has nothing to publish, and no unit is unsharded before it has.
  if (options.group->initialized.load(std::memory_order_acquire) == 0) return absl::OkStatus();
  context_.optimizer.Publish(step);
  RETURN_IF_ERROR(options.kernels->Finish());
  PublishApplied(options.group, context_.LocalIndex(), step);
  return absl::OkStatus();
}

absl::Status StateVersions::AwaitRoom() {
  const RankEngineOptions& options = context_.options;
  const int64_t step = context_.order.step();
  // A background save writes this version from its place (docs/adr/0048).
  options.files->AwaitOverwrite(step + 1);
  const absl::Duration patience = std::min(kHoldPatience, options.config->collective_timeout / 2);
  const absl::StatusOr<WriteBegin> begin =
      BeginWriting(&context_.record().hold, step + 1, AbortFlag(context_.interrupt.flag()),
                   SteadyNow() + patience);
  // Only the interrupt ends this wait early, and it has the reason.
  if (!begin.ok()) return context_.interrupt.Check();
  if (*begin == WriteBegin::kBrokeHold) {
    TESSERA_LOG(WARNING, "rank {}: a reader of step {} took longer than {}: its copy is void",
                options.rank.value(), step - 1, absl::FormatDuration(patience));
  }
  return absl::OkStatus();
}

absl::Status StateVersions::BeginStaging(bool first) {
  if (!first) return next_->BeginWrite(context_.order.step() + 1, {});
  next_->BeginFirst();
  return absl::OkStatus();
}

void StateVersions::ForgetStaged() { staged_.assign(staged_.size(), 0); }

absl::Status StateVersions::Apply(int64_t step) {
  const RankEngineOptions& options = context_.options;
  StepNumbers numbers =
      LoadDecision(*options.group, options.updates, step, options.config->groups.size());
  // Before the version is published: the decision is kept for two steps only.
  if (numbers.put != 0) RememberPut(options.group, numbers.put, step);
  std::atomic<uint32_t>& has_momentum = context_.record().has_momentum;
  if (numbers.is_write) {
    context_.optimizer.ApplyStaged(step, numbers.loaded.has_value(), published_ahead_ == step);
    // Whatever was loaded may hold momentum.
    if (numbers.loaded.has_value()) has_momentum.store(1);
  } else {
    // Before the update: a kill in between leaves the flag set, which costs a copy and changes no
    // bit.
    for (const HyperParameters& group : numbers.groups) {
      if (group.momentum != 0) has_momentum.store(1, std::memory_order_relaxed);
    }
    const OptimizerStep update = {step, numbers.gradient_scale, std::move(numbers.groups),
                                  options.updates.Load(step),
                                  has_momentum.load(std::memory_order_relaxed) != 0};
    // After a restart no early update counts: each unit is updated here, from its reduced gradient.
    context_.optimizer.Apply(update, early_.MadeBy(update));
  }
  // The version word below says that the shard is whole, so the kernels must have ended.
  RETURN_IF_ERROR(options.kernels->Finish());
  // Before the version word, so that readers of the version find its buffers.
  options.buffers->Publish(step);
  (void)FaultPoint(numbers.put != 0   ? "put.before-publish"
                   : numbers.is_write ? "write.before-publish"
                                      : "step.before-publish");
  // A kill before this line repeats all of it, from version v.
  PublishApplied(options.group, context_.LocalIndex(), step);
  return absl::OkStatus();
}

absl::Status StateVersions::TakeBackPublished() {
  // Once, and only where this rank has published: others of its host may not have (docs/adr/0054).
  if (std::exchange(published_ahead_, -1) < 0) return absl::OkStatus();
  const RankEngineOptions& options = context_.options;
  const int64_t step = context_.order.step();
  // Version v again, over what was published ahead of a decision that did not come.
  context_.optimizer.Publish(step);
  RETURN_IF_ERROR(options.kernels->Finish());
  RETURN_IF_ERROR(FaultPoint("load.take-back"));
  PublishApplied(options.group, context_.LocalIndex(), step);
  return absl::OkStatus();
}

}  // namespace tessera
