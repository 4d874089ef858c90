#include "worker/executor/checkpoint_load_plan.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "worker/executor/checkpoint_plan.h"

namespace tessera {
namespace {

absl::Status Mismatch(const StoredTensor& stored, const std::vector<int64_t>& shape) {
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor '", stored.name, "' is ", Name(stored.dtype), " [", absl::StrJoin(stored.shape, ", "),
      "], wanted is [", absl::StrJoin(shape, ", "), "]"));
}

// The names that a parameter has in the model; its own is the first.
std::vector<std::string> NamesOf(const UnitLayout& unit, const std::string& name) {
  std::vector<std::string> names = {name};
  for (const Alias& alias : unit.flat.aliases()) {
    if (alias.primary == name) names.push_back(alias.name);
  }
  return names;
}

// Whether the file has state under that name, whole.
absl::StatusOr<bool> FindState(const SafetensorsHeader& optimizer, const std::string& name,
                               const TensorSpec& spec, OptimizerKind kind) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> wanted = {{StepTensor(name), {}}};
  for (const StateArray moment : MomentsOf(kind))
    wanted.emplace_back(MomentTensor(name, kind, moment), spec.shape);
  size_t found = 0;
  std::string missing;
  for (const auto& [tensor, shape] : wanted) {
    const auto stored = optimizer.tensors.find(tensor);
    if (stored == optimizer.tensors.end()) {
      missing = tensor;
      continue;
    }
    ++found;
    const bool fits = stored->second.shape == shape && (stored->second.dtype == DType::kFp32 ||
                                                        stored->second.dtype == DType::kFp64);
    if (!fits) return Mismatch(stored->second, shape);
  }
  if (found == 0) return false;
  if (found == wanted.size()) return true;
  return absl::InvalidArgumentError(absl::StrCat("tensor '", missing, "' is missing, but others ",
                                                 "of the same parameter's state are there"));
}

absl::Status PlanStates(const SafetensorsHeader& optimizer, const ModelLayout& layout,
                        const JobConfig& config, bool strict, CheckpointLoadPlan* plan) {
  std::set<std::string> known;
  size_t number = 0;
  for (const UnitLayout& unit : layout.units) {
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      std::string& state = plan->states[number++];
      for (const std::string& name : NamesOf(unit, parameter.spec.name)) {
        known.insert(StepTensor(name));
        for (const StateArray moment : MomentsOf(config.optimizer))
          known.insert(MomentTensor(name, config.optimizer, moment));
        if (!state.empty() || !parameter.spec.requires_grad) continue;
        ASSIGN_OR_RETURN(const bool found,
                         FindState(optimizer, name, parameter.spec, config.optimizer));
        if (found) state = name;
      }
    }
  }
  for (const auto& [tensor, stored] : optimizer.tensors) {
    if (known.count(tensor) != 0) continue;
    if (strict) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor, "' is the state of no parameter of the model"));
    }
    plan->model.unexpected.push_back(tensor);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointLoadPlan> PlanCheckpointLoad(const SafetensorsHeader& model,
                                                      const SafetensorsHeader* optimizer,
                                                      const std::vector<TensorSpec>& buffers,
                                                      const ModelLayout& layout,
                                                      const JobConfig& config, bool strict) {
  CheckpointLoadPlan plan;
  SafetensorsHeader parameters = model;
  std::vector<std::string> missing;
  for (const TensorSpec& buffer : buffers) {
    const auto stored = model.tensors.find(buffer.name);
    if (stored == model.tensors.end()) {
      missing.push_back(buffer.name);
      continue;
    }
    if (stored->second.shape != buffer.shape || stored->second.dtype != buffer.dtype)
      return Mismatch(stored->second, buffer.shape);
    plan.buffers.push_back(buffer);
    parameters.tensors.erase(buffer.name);
  }
  if (strict && !missing.empty())
    return absl::InvalidArgumentError(absl::StrCat("it lacks buffer '", missing[0], "'"));
  ASSIGN_OR_RETURN(plan.model, PlanLoad(TableOf(parameters), layout, strict));
  plan.model.missing.insert(plan.model.missing.end(), missing.begin(), missing.end());
  ForEachParameter(layout, [&](const PlacedParameter&, int) { plan.states.emplace_back(); });
  if (optimizer != nullptr) RETURN_IF_ERROR(PlanStates(*optimizer, layout, config, strict, &plan));
  return plan;
}

}  // namespace tessera
