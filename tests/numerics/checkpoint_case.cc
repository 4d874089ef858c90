#include "tests/numerics/checkpoint_case.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::numerics {
namespace {

constexpr int kMostRanks = 6;

// A parameter with all of its names, the first of which is its own.
struct NamedParameter {
  TensorSpec spec;
  std::vector<std::string> names;
};

template <typename T>
void Shuffle(std::vector<T>* values, Dice* dice) {
  for (size_t left = values->size(); left > 1; --left)
    std::swap((*values)[left - 1], (*values)[dice->Below(static_cast<int>(left))]);
}

RandomJob MakeSmallJob(uint64_t seed) {
  if (Dice(seed, 100).OneIn(3)) return MakeJobOfSeveralWorkers(seed);
  RandomJob job = MakeJob(seed);
  job.config.world_size = std::min(job.config.world_size, kMostRanks);
  job.ranks_by_worker = {job.config.world_size};
  return job;
}

// Some of them have a third name.
void TieMore(Dice* dice, ModelSpec* model) {
  for (UnitSpec& unit : model->units) {
    if (!dice->OneIn(3)) continue;
    TensorSpec tied = unit.parameters[0];
    tied.name = absl::StrCat(unit.name, ".again");
    tied.shared_with = unit.parameters[0].name;
    unit.parameters.push_back(std::move(tied));
  }
}

std::vector<NamedParameter> ParametersOf(const ModelSpec& model) {
  std::vector<NamedParameter> parameters;
  std::map<std::string, size_t> numbers;
  for (const UnitSpec& unit : model.units) {
    for (const TensorSpec& spec : unit.parameters) {
      if (spec.shared_with.empty()) {
        numbers[spec.name] = parameters.size();
        parameters.push_back({spec, {}});
      }
      const std::string& own = spec.shared_with.empty() ? spec.name : spec.shared_with;
      parameters[numbers.at(own)].names.push_back(spec.name);
    }
  }
  return parameters;
}

// Units of at most so many dtypes as there are: a unit has one.
ModelSpec Rewrapped(std::vector<NamedParameter> parameters, Dice* dice) {
  Shuffle(&parameters, dice);
  const int most_units = 1 + dice->Below(4);
  std::map<std::pair<DType, int>, UnitSpec> units;
  for (NamedParameter& parameter : parameters) {
    TensorSpec spec = parameter.spec;
    if (dice->OneIn(8)) spec.requires_grad = !spec.requires_grad;
    if (dice->OneIn(8)) spec.dtype = spec.dtype == DType::kFp32 ? DType::kFp64 : DType::kFp32;
    UnitSpec& unit = units[{spec.dtype, dice->Below(most_units)}];
    Shuffle(&parameter.names, dice);
    for (const std::string& name : parameter.names) {
      spec.name = name;
      spec.shared_with = name == parameter.names[0] ? "" : parameter.names[0];
      unit.parameters.push_back(spec);
    }
  }
  ModelSpec model;
  for (auto& [key, unit] : units) {
    unit.name = absl::StrCat("wrapped", model.units.size());
    model.units.push_back(std::move(unit));
  }
  return model;
}

}  // namespace

CheckpointCase MakeCheckpointCase(uint64_t seed) {
  Dice dice(seed, 101);
  CheckpointCase made;
  made.saves = MakeSmallJob(seed);
  TieMore(&dice, &made.saves.model);
  const std::vector<NamedParameter> parameters = ParametersOf(made.saves.model);
  for (const NamedParameter& parameter : parameters) {
    for (const std::string& name : parameter.names) made.saved_name[name] = parameter.spec.name;
  }
  made.loads = MakeSmallJob(seed + 1'000'000);
  // Numbers of groups belong to the job; what they are of is in another model.
  JobConfig& config = made.loads.config;
  config.optimizer = made.saves.config.optimizer;
  for (ParamGroup& group : config.groups) {
    if (config.optimizer != OptimizerKind::kSgd) group.momentum = 0;
  }
  made.loads.model = Rewrapped(parameters, &dice);
  if (config.groups.size() > 1)
    config.groups[1].parameter_names = {made.loads.model.units.back().parameters[0].name};
  config.max_gathered_bytes = dice.OneIn(4) ? 256 : 0;
  for (UnitSpec& unit : made.loads.model.units) {
    if (dice.OneIn(3))
      unit.strategy = dice.Of<Strategy>({Strategy::kFullShard, Strategy::kNoShard});
    if (config.shard_group_size > 0 && dice.OneIn(3)) unit.strategy = Strategy::kHybridShard;
  }
  return made;
}

}  // namespace tessera::numerics
