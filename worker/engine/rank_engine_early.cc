// The optimizer of RankEngine in backward: what is known of the step when a unit's gradient is
// reduced is assumed to be all, and the unit is written into version v + 1, where nobody looks. The
// decision tells; what was assumed wrong, or died with an executor, is computed again from version
// v and the reduced gradient, both of which stand.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/engine/rank_engine.h"
#include "worker/engine/step_vote.h"

namespace tessera {
namespace {

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

absl::Status RankEngine::AnnounceStep(const Op& op) {
  absl::StatusOr<std::vector<HyperParameters>> groups =
      GroupsOf(op, *options_.control, *options_.config);
  RETURN_IF_ERROR(Annotate(groups.status(), absl::StrCat("rank ", options_.rank.value())));
  assumed_groups_ = *std::move(groups);
  return absl::OkStatus();
}

std::vector<int64_t> RankEngine::AssumedUpdates(int unit) const {
  const int first = options_.memory->units()[unit].first_parameter;
  const std::byte* touched =
      options_.own_gradients + options_.memory->touched_offset_bytes() + first;
  std::vector<int64_t> updates(options_.layout->units[unit].flat.parameters().size());
  for (size_t p = 0; p < updates.size(); ++p) {
    if (touched[p] != std::byte{0}) updates[p] = options_.updates.CountOf(step_, first + p) + 1;
  }
  return updates;
}

void RankEngine::UpdateEarly(int unit, std::vector<int64_t> updates,
                             std::vector<HyperParameters> groups, int64_t number) {
  early_updates_[unit].clear();
  {
    absl::MutexLock lock(&mu_);
    if (!stream_status_.ok()) return;
  }
  // It would be a guess that holds the stream up: the step does it, once nobody reads there.
  if (!TryBeginWriting(&options_.group->ranks[LocalIndex()].hold, step_ + 1)) return;
  if (options_.files != nullptr && !options_.files->MayOverwrite(step_ + 1)) return;
  options_.recorder->Started(number);
  OptimizerStep step = {step_ + 1, 1.0, groups, std::vector<int64_t>()};
  step.updates.resize(options_.memory->num_parameters());
  std::copy(updates.begin(), updates.end(),
            step.updates.begin() + options_.memory->units()[unit].first_parameter);
  optimizer_.UpdateEarly(unit, step, options_.stream_kernels);
  if (!options_.stream_kernels->Finish().ok()) return;  // The step meets it, too.
  (void)FaultPoint("update.in-backward");
  early_updates_[unit] = std::move(updates);
  early_groups_[unit] = std::move(groups);
  options_.recorder->Done(number);
}

std::vector<bool> RankEngine::EarlyUnits(const OptimizerStep& step) const {
  if (!options_.config->optimizer_in_backward) return {};
  std::vector<bool> early(early_updates_.size(), false);
  bool all = true;
  for (size_t unit = 0; unit < early.size(); ++unit) {
    const std::vector<int64_t>& updates = early_updates_[unit];
    const int first = options_.memory->units()[unit].first_parameter;
    early[unit] = !updates.empty() && step.gradient_scale == 1.0 &&
                  SameNumbers(early_groups_[unit], step.groups) &&
                  std::equal(updates.begin(), updates.end(), step.updates.begin() + first);
    const auto begin = step.updates.begin() + first;
    const auto end = begin + options_.layout->units[unit].flat.parameters().size();
    const bool needed = std::any_of(begin, end, [](int64_t update) { return update != 0; });
    all = all && (early[unit] || !needed);
  }
  if (!all) {
    const int64_t number =
        options_.recorder->Enqueued(step.step, order_.sequence(), OpKind::kUpdate, -1, 0);
    options_.recorder->Started(number);
  }
  return early;
}

}  // namespace tessera
