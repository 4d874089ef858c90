#include "worker/executor/load/checkpoint_load_plan.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "layout/name_selection.h"
#include "worker/executor/save/checkpoint_plan.h"

namespace tessera {
namespace {

absl::Status Mismatch(const StoredTensor& stored, const TensorInfo& wanted) {
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor '", stored.name, "' is ", Name(stored.dtype), " [", absl::StrJoin(stored.shape, ", "),
      "], wanted is ", Name(wanted.dtype), " [", absl::StrJoin(wanted.shape, ", "), "]"));
}

// Whether the file has all of the state that it has some of, under that name.
absl::Status CheckState(const SafetensorsHeader& optimizer, const std::string& name,
                        const TensorSpec& spec, OptimizerKind kind) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> wanted = {{StepTensor(name), {}}};
  for (const StateArray moment : MomentsOf(kind))
    wanted.emplace_back(MomentTensor(name, kind, moment), spec.shape);
  std::string missing;
  for (const auto& [tensor, shape] : wanted) {
    const auto stored = optimizer.tensors.find(tensor);
    if (stored == optimizer.tensors.end()) {
      missing = tensor;
      continue;
    }
    // Moments are never rounded, so only full precision is accepted.
    const bool fits = stored->second.shape == shape && (stored->second.dtype == DType::kFp32 ||
                                                        stored->second.dtype == DType::kFp64);
    if (!fits) {
      const bool is_fp64 = stored->second.dtype == DType::kFp64;
      return Mismatch(stored->second, {StoredAs(is_fp64 ? DType::kFp64 : DType::kFp32), shape});
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor '", missing, "' is missing, but others ",
                                                 "of the same parameter's state are there"));
}

using NameMap = std::map<std::string, std::string>;  // In the model to in the file.

// Of the parameters that the file has state of.
absl::StatusOr<NameMap> StatesInFile(const SafetensorsHeader& optimizer, OptimizerKind kind,
                                     const LoadRules& rules) {
  std::set<std::string> names;
  for (const auto& [tensor, stored] : optimizer.tensors) {
    if (const auto name = ParameterOf(tensor, kind); name.has_value()) names.insert(*name);
  }
  return NamesInModel({names.begin(), names.end()}, rules.names.renames);
}

// State tensors without a parameter, except for those left out.
absl::Status FindStrangers(const SafetensorsHeader& optimizer, OptimizerKind kind,
                           const std::set<std::string>& known, const LoadRules& rules,
                           CheckpointLoadPlan* plan) {
  for (const auto& [tensor, stored] : optimizer.tensors) {
    if (const auto in_file = ParameterOf(tensor, kind); in_file.has_value()) {
      const std::string name = NameInModel(rules.names.renames, *in_file);
      // A name that the rules leave out is no mistake.
      if (known.count(name) != 0 || !IsWanted(rules.names, {name})) continue;
    }
    // Not strict: it is only told, as PyTorch does with keys that it does not expect.
    if (rules.strict) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor, "' is the state of a parameter that the model does not have"));
    }
    plan->model.unexpected.push_back(tensor);
  }
  return absl::OkStatus();
}

absl::Status PlanStates(const SafetensorsHeader& optimizer, const ModelLayout& layout,
                        OptimizerKind kind, const LoadRules& rules, CheckpointLoadPlan* plan) {
  ASSIGN_OR_RETURN(const NameMap in_file, StatesInFile(optimizer, kind, rules));
  std::set<std::string> known;
  size_t number = 0;
  for (const UnitLayout& unit : layout.units) {
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      std::string& state = plan->states[number];
      const bool wanted = !plan->left_out[number] && parameter.spec.requires_grad;
      ++number;
      for (const std::string& name : NamesOf(unit, parameter.spec.name)) {
        known.insert(name);
        const auto found = in_file.find(name);
        if (!wanted || !state.empty() || found == in_file.end()) continue;
        RETURN_IF_ERROR(CheckState(optimizer, found->second, parameter.spec, kind));
        state = found->second;
      }
    }
  }
  return FindStrangers(optimizer, kind, known, rules, plan);
}

}  // namespace

absl::StatusOr<CheckpointLoadPlan> PlanCheckpointLoad(const SafetensorsHeader& model,
                                                      const SafetensorsHeader* optimizer,
                                                      const std::vector<NamedTensorInfo>& buffers,
                                                      const ModelLayout& layout,
                                                      const JobConfig& config,
                                                      const LoadRules& rules) {
  CheckpointLoadPlan plan;
  LoadRules of_model = rules;
  // A load of moments alone reads no parameter, so none can be missing.
  if (rules.optimizer_only) of_model.strict = false;
  ASSIGN_OR_RETURN(plan.model, PlanLoad(TableOf(model), layout, of_model, buffers));
  for (const LoadPlan::Buffer& buffer : plan.model.buffers) {  // Their bytes are read as they are.
    const StoredTensor& stored = model.tensors.at(buffer.tensor);
    if (stored.dtype != buffer.wanted.info.dtype) return Mismatch(stored, buffer.wanted.info);
  }
  if (rules.optimizer_only) {
    plan.model.missing.clear();
    plan.model.unexpected.clear();
  }
  const std::set<std::string> left_out(plan.model.left_out.begin(), plan.model.left_out.end());
  ForEachParameter(layout, [&](const PlacedParameter& parameter, int) {
    plan.states.emplace_back();
    plan.left_out.push_back(left_out.count(parameter.spec.name) != 0);
  });
  if (optimizer != nullptr)
    RETURN_IF_ERROR(PlanStates(*optimizer, layout, config.optimizer, rules, &plan));
  return plan;
}

}  // namespace tessera
