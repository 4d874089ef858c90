#include "worker/engine/early_updates.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/engine/step_vote.h"

namespace tessera {
namespace {

// Exactly equal: a number that is off by one bit makes another update.
bool SameNumbers(const std::vector<HyperParameters>& a, const std::vector<HyperParameters>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].learning_rate != b[i].learning_rate || a[i].beta1 != b[i].beta1 ||
        a[i].beta2 != b[i].beta2 || a[i].epsilon != b[i].epsilon ||
        a[i].weight_decay != b[i].weight_decay || a[i].momentum != b[i].momentum) {
      return false;
    }
  }
  return true;
}

}  // namespace

EarlyUpdates::EarlyUpdates(EngineContext* context)
    : context_(*context),
      assumed_groups_(context->options.config->groups.begin(),
                      context->options.config->groups.end()),
      made_(context->num_units()) {}

absl::Status EarlyUpdates::Announce(const Op& op) {
  const RankEngineOptions& options = context_.options;
  absl::StatusOr<std::vector<HyperParameters>> groups =
      GroupsOf(op, *options.control, *options.config);
  RETURN_IF_ERROR(Annotate(groups.status(), absl::StrCat("rank ", options.rank.value())));
  // For the updates of this step. Without an announcement the last step's numbers are assumed.
  assumed_groups_ = *std::move(groups);
  return absl::OkStatus();
}

// Made on the engine's thread: the stream runs it later, when the order may have moved on.
EarlyUpdates::Assumed EarlyUpdates::Plan(int unit) const {
  const int first = context_.MemoryOf(unit).first_parameter;
  // As far as this rank's trainer knows. If another rank touches more, the decision's count
  // differs.
  const std::byte* touched = context_.Touched() + first;
  std::vector<int64_t> updates(context_.UnitOf(unit).flat.parameters().size());
  for (size_t p = 0; p < updates.size(); ++p) {
    if (touched[p] == std::byte{0}) continue;
    // The update's number is a guess that this step will be taken. MadeBy compares it with the
    // decision.
    updates[p] = context_.options.updates.CountOf(context_.order.step(), first + p) + 1;
  }
  return {std::move(updates), assumed_groups_};
}

void EarlyUpdates::Update(int unit, Assumed assumed, int64_t number) {
  const RankEngineOptions& options = context_.options;
  // Whatever was updated early for this unit is void while its shard is written again.
  made_[unit].updates.clear();
  // The reduction before it on the stream may have failed, and its gradient is none.
  if (!context_.interrupt.stream_status().ok()) return;
  // Read on the stream: the step changes only while the stream is idle.
  const int64_t next = context_.order.step() + 1;
  // It would be a guess that holds the stream up: the step does it, once nobody reads there.
  if (!TryBeginWriting(&context_.record().hold, next)) return;
  if (!options.files->MayOverwrite(next)) return;
  options.recorder->Started(number);
  // A scale of 1: a step that clips or divides finds another scale, and makes the update again.
  OptimizerStep step = {next, 1.0, assumed.groups, std::vector<int64_t>()};
  step.updates.resize(options.memory->num_parameters());
  std::copy(assumed.updates.begin(), assumed.updates.end(),
            step.updates.begin() + context_.MemoryOf(unit).first_parameter);
  context_.optimizer.UpdateEarly(unit, step, options.stream_kernels);
  if (!options.stream_kernels->Finish().ok()) return;  // The step meets it, too.
  // A kill here leaves version v as it was, and v+1 is not valid before the decision.
  (void)FaultPoint("update.in-backward");
  // The engine's thread reads it once the stream was awaited.
  made_[unit] = std::move(assumed);
  options.recorder->Done(number);
}

std::vector<bool> EarlyUpdates::MadeBy(const OptimizerStep& step) const {
  const RankEngineOptions& options = context_.options;
  if (!options.config->optimizer_in_backward) return {};
  std::vector<bool> early(made_.size(), false);
  bool all = true;
  for (size_t unit = 0; unit < early.size(); ++unit) {
    // Empty in an executor that has just started: its predecessor's guesses died with it.
    const std::vector<int64_t>& updates = made_[unit].updates;
    const int first = context_.MemoryOf(unit).first_parameter;
    // All assumptions must have come true, or the bits would not be those of the step.
    early[unit] = !updates.empty() && step.gradient_scale == 1.0 &&
                  SameNumbers(made_[unit].groups, step.groups) &&
                  std::equal(updates.begin(), updates.end(), step.updates.begin() + first);
    const auto begin = step.updates.begin() + first;
    const auto end = begin + context_.UnitOf(unit).flat.parameters().size();
    const bool needed = std::any_of(begin, end, [](int64_t update) { return update != 0; });
    all = all && (early[unit] || !needed);
  }
  if (!all) {
    const int64_t number =
        options.recorder->Enqueued(step.step, context_.order.sequence(), OpKind::kUpdate, -1, 0);
    options.recorder->Started(number);
    options.recorder->Done(number);  // It says only that the step computes some again.
  }
  return early;
}

void EarlyUpdates::ForgetAll() {
  for (Assumed& made : made_) made.updates.clear();
}

}  // namespace tessera
