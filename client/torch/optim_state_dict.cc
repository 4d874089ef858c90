#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "tessera/torch/optim_state_dicts.h"

namespace tessera {

OptimFormula FormulaOf(OptimizerKind optimizer) {
  OptimFormula formula;
  formula.decoupled_weight_decay = optimizer == OptimizerKind::kAdamW;
  return formula;
}

absl::Status CheckFormula(const OptimParamGroup& group, const OptimFormula& own, size_t index) {
  if (!group.formula.has_value()) return absl::OkStatus();
  const auto error = [index](absl::string_view what) {
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer state: param group ", index, " ", what,
                     ", other than that of the optimizer that is to go on with it"));
  };
  const OptimFormula& theirs = *group.formula;
  if (theirs.nesterov != own.nesterov)
    return error(absl::StrCat("has nesterov ", theirs.nesterov ? "on" : "off"));
  if (theirs.dampening != own.dampening)
    return error(absl::StrCat("has dampening ", theirs.dampening));
  // Without weight decay the two formulas are the same.
  if (theirs.decoupled_weight_decay != own.decoupled_weight_decay &&
      group.numbers.weight_decay != 0) {
    return error(absl::StrCat("has weight decay that is ",
                              theirs.decoupled_weight_decay ? "" : "not ", "decoupled"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OptimStateDict> Rekey(const OptimStateDict& dict, OptimStateKeyType key_type,
                                     const std::vector<std::string>& names) {
  std::unordered_map<std::string, std::string> new_keys;
  for (size_t id = 0; id < names.size(); ++id) {
    const std::string text = absl::StrCat(id);
    const bool to_ids = key_type == OptimStateKeyType::kParamId;
    new_keys[to_ids ? names[id] : text] = to_ids ? text : names[id];
  }
  const auto new_key = [&](const std::string& key) -> absl::StatusOr<std::string> {
    const auto found = new_keys.find(key);
    if (found != new_keys.end()) return found->second;
    return absl::NotFoundError(
        absl::StrCat("optimizer state: '", key, "' is not a parameter of the optimizer"));
  };
  OptimStateDict rekeyed;
  rekeyed.last_step = dict.last_step;
  for (const auto& item : dict.state) {
    for (const auto& [name, entry] : item.value().moments) {
      if (entry.kind == StateEntry::Kind::kFlat) {
        return absl::InvalidArgumentError(absl::StrCat(
            "optimizer state: '", item.key(), "' belongs to a unit, and only parameters have ids"));
      }
    }
    ASSIGN_OR_RETURN(const std::string key, new_key(item.key()));
    rekeyed.state.insert(key, item.value());
  }
  for (const OptimParamGroup& group : dict.groups) {
    OptimParamGroup& to = rekeyed.groups.emplace_back(group);
    to.params.clear();
    for (const std::string& param : group.params) {
      ASSIGN_OR_RETURN(to.params.emplace_back(), new_key(param));
    }
  }
  return rekeyed;
}

std::vector<std::string> ParamsOf(const OptimStateDict& dict) {
  std::vector<std::string> params;
  for (const OptimParamGroup& group : dict.groups)
    params.insert(params.end(), group.params.begin(), group.params.end());
  return params;
}

}  // namespace tessera
