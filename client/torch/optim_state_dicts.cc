#include "tessera/torch/optim_state_dicts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session_setup.h"
#include "client/torch/collective_call.h"
#include "client/torch/optim_state_loader.h"
#include "client/torch/precision_rules.h"
#include "client/torch/state_parts.h"
#include "client/torch/state_sites.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_status.h"
#include "job/param_groups.h"
#include "tessera/optimizer_state.h"

namespace tessera {
namespace {

// Whether some parameter of the unit has state.
bool AnyState(const std::vector<int64_t>& counts, int first, size_t size) {
  return std::any_of(counts.begin() + first, counts.begin() + first + size,
                     [](int64_t count) { return count > 0; });
}

// One unit's state, an entry after the other.
class UnitMoments {
 public:
  UnitMoments(Session* session, int unit, const int64_t* counts, bool keep)
      : session_(session), unit_(unit), counts_(counts), keep_(keep) {}

  // Reads whole moments of the unit; gives FULL or SHARDED entries, or LOCAL's under `flat_key`.
  absl::Status AddTo(OptimStateDict* dict, StateDictType type, const std::string& flat_key) {
    const std::vector<PlacedParameter>& placed = session_->layout().units[unit_].flat.parameters();
    // A flat part has one step for all its parameters.
    if (type == StateDictType::kLocal) {
      const auto step = StepOfUnit(*session_, unit_, [&](int p) { return counts_[p]; });
      // The counts are the job's: no rank has to tell the others, which may still be in an earlier
      // call.
      if (!step.ok()) return SessionSetup(session_).ErrorOfAll(step.status());
      local_.step = *step;
    }
    states_.resize(placed.size());
    for (const StateArray array : MomentsOf(session_->config().optimizer))
      RETURN_IF_ERROR(ReadArray(array, type));
    if (!keep_) return absl::OkStatus();
    if (type == StateDictType::kLocal) {
      dict->state.insert(flat_key, local_);
      return absl::OkStatus();
    }
    for (size_t p = 0; p < placed.size(); ++p) {
      if (counts_[p] <= 0) continue;
      states_[p].step = counts_[p];
      dict->state.insert(placed[p].spec.name, states_[p]);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadArray(StateArray array, StateDictType type) {
    const std::vector<PlacedParameter>& placed = session_->layout().units[unit_].flat.parameters();
    const char* moment = MomentName(session_->config().optimizer, array);
    std::vector<torch::Tensor> wholes;
    // Called on all ranks, since reading is collective.
    RETURN_IF_ERROR(ReadMoments(session_, unit_, array, [&](int p, ConstValues values) {
      if (!keep_) return;
      torch::Tensor whole = TensorOf(values, placed[p].spec.shape);
      if (type == StateDictType::kLocal) {
        wholes.push_back(counts_[p] > 0 ? whole : torch::zeros_like(whole));
      } else if (counts_[p] > 0) {
        states_[p].moments[moment] = PartOf(*session_, unit_, whole, type);
      }
    }));
    if (!wholes.empty()) local_.moments[moment] = FlatPartOf(*session_, unit_, wholes);
    return absl::OkStatus();
  }

  Session* const session_;
  const int unit_;
  const int64_t* const counts_;  // By parameter of the unit.
  const bool keep_;
  std::vector<OptimParamState> states_;
  OptimParamState local_;
};

}  // namespace

std::vector<std::string> OptimStateDicts::names() const {
  std::vector<std::string> names;
  const auto sites = SitesOf(model_, model_->root());
  const JobConfig& config = model_->session().config();
  if (!sites.ok()) return names;
  const ParamGroups group_of(config);
  std::vector<std::vector<std::string>> of_group(config.groups.size());
  std::set<std::pair<int, int>> seen;
  for (const StateSite& site : *sites) {
    // Aliases and buffers have no state of their own.
    if (site.unit < 0 || !seen.emplace(site.unit, site.parameter).second) continue;
    of_group[group_of[site.name]].push_back(site.name);
  }
  for (const auto& group : of_group) names.insert(names.end(), group.begin(), group.end());
  return names;
}

absl::Status OptimStateDicts::CheckUse(const char* what, bool loads) const {
  RETURN_IF_ERROR(model_->CheckIdle(what));
  if (loads && (model_->in_step() || model_->session().within_step())) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": not possible within a step, which could not undo it"));
  }
  ASSIGN_OR_RETURN(const StateDictSettings settings, types_->Get(model_->root()));
  if (settings.type != StateDictType::kLocal) return absl::OkStatus();
  for (const UnitLayout& unit : model_->session().layout().units) {
    if (!ShardsNothing(unit)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("LOCAL_STATE_DICT is only of units that are sharded: unit '",
                     unit.flat.unit_name(), "' is whole on every rank"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OptimStateDict> OptimStateDicts::TryGet(const StateDictSettings& settings) {
  Session& session = model_->session();
  ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(&session));
  const bool keep = !settings.optimizer_rank0_only() || session.rank() == 0;
  OptimStateDict dict;
  int first = 0;
  for (int unit = 0; unit < session.num_units(); ++unit) {
    const size_t size = session.layout().units[unit].flat.parameters().size();
    // A unit that was never updated has zeroes, which need not be read.
    if (AnyState(progress.update_counts, first, size)) {
      UnitMoments moments(&session, unit, progress.update_counts.data() + first, keep);
      RETURN_IF_ERROR(moments.AddTo(&dict, settings.type, FlatKeyOf(*model_, unit, "")));
    }
    first += size;
  }
  if (!keep) return dict;
  const JobConfig& config = session.config();
  for (size_t g = 0; g < config.groups.size(); ++g) {
    // What the last step used, which may differ from the job's first numbers.
    const bool stepped = progress.step > 0 && g < progress.groups.size();
    OptimParamGroup& group = dict.groups.emplace_back();
    group.numbers = stepped ? progress.groups[g] : config.groups[g];
    group.formula = FormulaOf(config.optimizer);
  }
  const ParamGroups group_of(config);
  for (const std::string& name : names()) dict.groups[group_of[name]].params.push_back(name);
  dict.last_step = progress.step;
  return dict;
}

absl::StatusOr<OptimStateDict> OptimStateDicts::Get() {
  RETURN_IF_ERROR(CheckUse("optimizer state dict", /*loads=*/false));
  ASSIGN_OR_RETURN(const StateDictSettings settings, types_->Get(model_->root()));
  OptimStateDict dict;
  RETURN_IF_ERROR(RunCollective(model_, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(dict, TryGet(settings));
    return absl::OkStatus();
  }));
  return dict;
}

}  // namespace tessera
