#include "worker/executor/save/checkpoint_plan.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "job/live_tensors.h"
#include "job/param_groups.h"

namespace tessera {
namespace {

// fp32 counts exactly up to here.
constexpr int64_t kMaxUpdates = int64_t{1} << 24;

constexpr absl::string_view kNumbers[] = {"lr",  "beta1",        "beta2",
                                          "eps", "weight_decay", "momentum"};
constexpr double HyperParameters::*kFields[] = {
    &HyperParameters::learning_rate, &HyperParameters::beta1,        &HyperParameters::beta2,
    &HyperParameters::epsilon,       &HyperParameters::weight_decay, &HyperParameters::momentum};

std::vector<ManifestGroup> GroupsFor(const ModelLayout& layout, const JobConfig& config,
                                     const TrainingProgress& progress) {
  std::vector<ManifestGroup> groups(progress.groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    for (size_t n = 0; n < std::size(kNumbers); ++n)
      groups[i].numbers[std::string(kNumbers[n])] = progress.groups[i].*kFields[n];
  }
  const ParamGroups group_of(config);
  ForEachParameter(layout, [&](const PlacedParameter& parameter, int) {
    groups[group_of[parameter.spec.name]].parameters.push_back(parameter.spec.name);
  });
  return groups;
}

}  // namespace

std::string MomentTensor(const std::string& parameter, OptimizerKind optimizer, StateArray moment) {
  return MomentTensorName(parameter, optimizer, static_cast<LiveArray>(moment));
}

std::string StepTensor(const std::string& parameter) {
  return absl::StrCat("state.", parameter, ".step");
}

std::optional<std::string> ParameterOf(const std::string& tensor, OptimizerKind optimizer) {
  constexpr absl::string_view kPrefix = "state.";
  std::vector<std::string> forms = {StepTensor("")};
  for (const StateArray moment : MomentsOf(optimizer))
    forms.push_back(MomentTensor("", optimizer, moment));
  for (const absl::string_view form : forms) {
    absl::string_view name = tensor;
    if (absl::ConsumePrefix(&name, kPrefix) &&
        absl::ConsumeSuffix(&name, form.substr(kPrefix.size())))
      return std::string(name);
  }
  return std::nullopt;
}

std::string OptimizerName(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdamW:
      return "adamw";
  }
  return "";
}

void ForEachParameter(
    const ModelLayout& layout,
    const std::function<void(const PlacedParameter& parameter, int job_parameter)>& visit) {
  int job_parameter = 0;
  for (const UnitLayout& unit : layout.units) {
    for (const PlacedParameter& parameter : unit.flat.parameters())
      visit(parameter, job_parameter++);
  }
}

absl::StatusOr<CheckpointPlan> PlanCheckpoint(const ModelLayout& layout, const JobConfig& config,
                                              const TrainingProgress& progress,
                                              const std::vector<NamedTensorInfo>& buffers,
                                              int64_t max_file_bytes) {
  std::vector<NamedTensorInfo> model;
  std::vector<TensorSpec> optimizer;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  absl::Status status;
  ForEachParameter(layout, [&](const PlacedParameter& parameter, int number) {
    TensorSpec spec = parameter.spec;
    spec.dtype = FullDType(spec.dtype);
    model.push_back(InfoOf(spec));
    const int64_t updates = progress.update_counts[number];
    if (!HasState(spec, updates)) return;
    // The count is stored as fp32, as PyTorch stores it. Beyond this it would be rounded.
    if (updates > kMaxUpdates) {
      status = absl::InvalidArgumentError(absl::StrCat("parameter '", spec.name, "' was updated ",
                                                       updates, " times, more than fp32 counts"));
    }
    const std::string name = spec.name;
    for (const StateArray moment : MomentsOf(config.optimizer)) {
      spec.name = MomentTensor(name, config.optimizer, moment);
      optimizer.push_back(spec);
    }
    optimizer.push_back({StepTensor(name), {}, DType::kFp32});
  });
  RETURN_IF_ERROR(status);
  for (const UnitLayout& unit : layout.units) {
    // The format has no shared tensors: readers find the alias's values under the other name.
    for (const Alias& alias : unit.flat.aliases()) metadata[alias.name] = alias.primary;
  }
  // After the parameters, in the trainers' order.
  model.insert(model.end(), buffers.begin(), buffers.end());
  CheckpointPlan plan;
  ASSIGN_OR_RETURN(plan.model, PlanModelFiles(model, metadata, max_file_bytes));
  ASSIGN_OR_RETURN(plan.optimizer, PlaceTensors(optimizer, {{"format", "pt"}}));
  return plan;
}

Manifest ManifestFor(const std::string& job_id, const ModelLayout& layout, const JobConfig& config,
                     const TrainingProgress& progress) {
  Manifest manifest;
  manifest.job_id = job_id;
  manifest.step = progress.step;
  manifest.world_size = config.world_size;
  manifest.optimizer = OptimizerName(config.optimizer);
  manifest.groups = GroupsFor(layout, config, progress);
  return manifest;
}

absl::StatusOr<std::vector<HyperParameters>> HyperParametersOf(const Manifest& manifest) {
  std::vector<HyperParameters> groups;
  for (const ManifestGroup& from : manifest.groups) {
    HyperParameters& to = groups.emplace_back();
    for (size_t n = 0; n < std::size(kNumbers); ++n) {
      const auto number = from.numbers.find(std::string(kNumbers[n]));
      if (number == from.numbers.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("manifest: param group ", groups.size() - 1, " lacks ", kNumbers[n]));
      }
      to.*kFields[n] = number->second;
    }
    // A manifest is a file that anybody may have written.
    RETURN_IF_ERROR(ValidateHyperParameters(to, groups.size() - 1));
  }
  return groups;
}

}  // namespace tessera
