#include "tests/numerics/random_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::numerics {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int64_t> RandomShape(Dice* dice) {
  std::vector<int64_t> shape;
  const int dims = dice->Below(4);
  for (int d = 0; d < dims; ++d)
    shape.push_back(dice->OneIn(12) ? 0 : 1 + dice->Below(dims == 1 ? 40 : 7));
  return shape;
}

UnitSpec RandomUnit(const std::string& name, Dice* dice) {
  UnitSpec unit;
  unit.name = name;
  const int count = 1 + dice->Below(4);
  const DType dtype = dice->OneIn(4) ? DType::kFp64 : DType::kFp32;
  for (int p = 0; p < count; ++p) {
    TensorSpec spec = {absl::StrCat(name, ".p", p), RandomShape(dice), dtype};
    spec.requires_grad = !dice->OneIn(6);
    unit.parameters.push_back(spec);
  }
  if (dice->OneIn(4)) {
    TensorSpec tied = unit.parameters[0];
    tied.name = absl::StrCat(name, ".tied");
    tied.shared_with = unit.parameters[0].name;
    unit.parameters.push_back(tied);
  }
  if (dice->OneIn(5)) unit.compute_dtype = dice->Of<DType>({DType::kFp32, DType::kBf16});
  if (dice->OneIn(5)) unit.reduce_dtype = dice->Of<DType>({DType::kFp32, DType::kFp16});
  return unit;
}

HyperParameters RandomNumbers(OptimizerKind kind, Dice* dice) {
  HyperParameters numbers;
  numbers.learning_rate = dice->Of<double>({0.1, 0.01, 0.003});
  numbers.weight_decay = dice->Of<double>({0.0, 0.1, 0.01});
  numbers.beta1 = dice->Of<double>({0.9, 0.5, 0.0});
  numbers.beta2 = dice->Of<double>({0.999, 0.95});
  numbers.epsilon = dice->Of<double>({1e-8, 1e-5});
  if (kind == OptimizerKind::kSgd) numbers.momentum = dice->Of<double>({0.0, 0.9});
  return numbers;
}

void RandomPrecision(Dice* dice, JobConfig* config) {
  const std::vector<DType> dtypes = {DType::kFp32, DType::kFp32, DType::kBf16, DType::kFp16};
  config->compute_dtype = dice->Of(dtypes);
  config->reduce_dtype = dice->Of(dtypes);
  config->keep_low_precision_gradients = dice->OneIn(4);
  config->layout.alignment_dtype = config->compute_dtype;
  config->layout.parameter_alignment_bytes = dice->Of<int64_t>({16, 16, 0});
  config->layout.shard_alignment_bytes = dice->Of<int64_t>({128, 0, 64});
}

// Of one job in three, some units have a strategy of their own.
void MixStrategies(const std::vector<Strategy>& choices, Dice* dice, RandomJob* job) {
  if (!dice->OneIn(3)) return;
  for (UnitSpec& unit : job->model.units) {
    if (dice->OneIn(2)) unit.strategy = dice->Of(choices);
  }
}

}  // namespace

RandomJob MakeJob(uint64_t seed) {
  Dice dice(seed, 0);
  RandomJob job;
  const int num_units = 1 + dice.Below(5);
  for (int u = 0; u < num_units; ++u)
    job.model.units.push_back(RandomUnit(absl::StrCat("u", u), &dice));
  JobConfig& config = job.config;
  config.world_size = 1 + dice.Below(8);
  config.strategy =
      dice.Of<Strategy>({Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard});
  RandomPrecision(&dice, &config);
  config.optimizer =
      dice.Of<OptimizerKind>({OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW});
  static_cast<HyperParameters&>(config.groups[0]) = RandomNumbers(config.optimizer, &dice);
  if (dice.OneIn(3)) {
    ParamGroup& group = config.groups.emplace_back();
    static_cast<HyperParameters&>(group) = RandomNumbers(config.optimizer, &dice);
    group.parameter_names = {job.model.units.back().parameters[0].name};
  }
  config.max_gradient_norm = dice.Of<double>({0.0, 0.5, 5.0});
  config.gradient_norm_p = dice.Of<double>({2.0, 2.0, 1.0, 3.0, 0.5, kInfinity});
  config.gradient_slots = dice.Below(4);
  config.max_gathered_units = 1 + dice.Below(3);
  job.ranks_by_worker = {config.world_size};
  MixStrategies({Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}, &dice, &job);
  return job;
}

RandomJob MakeJobOfSeveralWorkers(uint64_t seed) {
  RandomJob job = MakeJob(seed);
  JobConfig& config = job.config;
  Dice dice(seed, 1);
  config.world_size = 2 + dice.Below(5);
  const int most = 1 + dice.Below((config.world_size + 1) / 2);
  job.ranks_by_worker.clear();
  for (int left = config.world_size; left > 0; left -= most)
    job.ranks_by_worker.push_back(std::min(most, left));
  if (config.world_size % most == 0 && dice.OneIn(3)) {
    config.shard_group_size = most;
    config.strategy = dice.OneIn(2) ? Strategy::kHybridShard : Strategy::kHybridShardZero2;
    MixStrategies({Strategy::kFullShard, Strategy::kHybridShard, Strategy::kHybridShardZero2,
                   Strategy::kNoShard},
                  &dice, &job);
  }
  return job;
}

std::string Describe(const RandomJob& job) {
  const JobConfig& config = job.config;
  std::string text = absl::StrCat(
      absl::StrJoin(job.ranks_by_worker, "+"), " ranks, strategy ",
      static_cast<int>(config.strategy), ", optimizer ", static_cast<int>(config.optimizer),
      ", momentum ", config.groups[0].momentum, ", ", config.groups.size(), " groups, compute ",
      Name(config.compute_dtype), ", reduce ", Name(config.reduce_dtype), ", keep low ",
      config.keep_low_precision_gradients, ", clip ", config.max_gradient_norm,
      " by p = ", config.gradient_norm_p, ", ", config.gradient_slots, " slots; units");
  for (const UnitSpec& unit : job.model.units) {
    absl::StrAppend(&text, " [", unit.parameters[0].dtype == DType::kFp64 ? "fp64" : "");
    if (unit.strategy.has_value())
      absl::StrAppend(&text, " strategy ", static_cast<int>(*unit.strategy), ":");
    for (const TensorSpec& spec : unit.parameters)
      absl::StrAppend(&text, " ", absl::StrJoin(spec.shape, "x"), spec.requires_grad ? "" : "*");
    absl::StrAppend(&text, " ]");
  }
  return text;
}

RandomStep MakeStep(const RandomJob& job, uint64_t seed, int64_t number) {
  Dice dice(seed, static_cast<uint64_t>(number));
  RandomStep step;
  const int world_size = job.config.world_size;
  const int num_batches = 1 + dice.Below(3);
  const bool all_give = dice.OneIn(2);
  for (int b = 0; b < num_batches; ++b) {
    MicroBatch& batch = step.micro_batches.emplace_back();
    // A slot that units share holds nothing that waits.
    const bool may_wait = job.config.gradient_slots == 0 && b + 1 < num_batches;
    batch.reduces = !may_wait || dice.OneIn(2);
    for (const UnitSpec& unit : job.model.units) {
      const bool used = all_give || !dice.OneIn(4);
      for (const TensorSpec& spec : unit.parameters) {
        if (!spec.shared_with.empty()) continue;
        std::vector<char>& by_rank = batch.gives.emplace_back();
        const bool gives = used && spec.requires_grad && (all_give || !dice.OneIn(4));
        for (int rank = 0; rank < world_size; ++rank)
          by_rank.push_back(gives && (all_give || !dice.OneIn(3)));
      }
    }
  }
  for (size_t u = 0; u < job.model.units.size(); ++u) step.full_precision.push_back(dice.OneIn(8));
  StepOptions options;
  options.learning_rate_scale = dice.Of<double>({1.0, 0.5, 0.3, 0.0});
  options.gradient_divisor = dice.Of<double>({1.0, 1.0, 8.0, 0.7});
  if (dice.OneIn(4)) {
    for (size_t g = 0; g < job.config.groups.size(); ++g)
      options.groups.push_back(RandomNumbers(job.config.optimizer, &dice));
  }
  options.skip_non_finite = dice.OneIn(2);
  step.options.assign(world_size, options);
  if (dice.OneIn(4)) {
    for (int rank = 0; rank < world_size; ++rank) {
      step.options[rank].weight = rank == 0 ? 3 : dice.Below(5);
      step.total_weight += *step.options[rank].weight;
    }
  }
  step.magnitude = std::ldexp(1.0f, dice.Below(9) - 6);
  step.drops = dice.OneIn(20);
  step.leaves_reduction = all_give && job.config.gradient_slots == 0 && dice.OneIn(3);
  if (dice.OneIn(12)) {
    step.bad_rank = dice.Below(world_size);
    step.bad_parameter = dice.Below(static_cast<int>(step.micro_batches[0].gives.size()));
    step.bad_value = dice.OneIn(2) ? kInfinity : std::numeric_limits<float>::quiet_NaN();
  }
  return step;
}

}  // namespace tessera::numerics
