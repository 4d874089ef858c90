#include "tests/numerics/reference_trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tessera::numerics {
namespace {

float RoundToBits(float value, int fraction_bits, int min_exponent, double largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - fraction_bits);
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::fabs(rounded) > largest)
    return std::copysign(std::numeric_limits<float>::infinity(), value);
  return static_cast<float>(rounded);
}

}  // namespace

float RoundTo(DType dtype, float value) {
  switch (dtype) {
    case DType::kBf16:
      return RoundToBits(value, 7, -126, std::ldexp(255.0, 120));
    case DType::kFp16:
      return RoundToBits(value, 10, -14, 65504);
    default:
      return value;
  }
}

ReferenceTrainer::ReferenceTrainer(const ModelSpec& model, const JobConfig& config,
                                   std::vector<int> ranks_by_worker)
    : config_(config), ranks_by_worker_(std::move(ranks_by_worker)) {
  for (const UnitSpec& unit : model.units) {
    for (const TensorSpec& spec : unit.parameters) {
      if (!spec.shared_with.empty()) continue;
      Parameter& parameter = parameters_.emplace_back();
      parameter.unit = static_cast<int>(units_.size());
      parameter.spec = spec;
      const size_t numel = *Numel(spec);
      for (auto* array : {&parameter.p, &parameter.m, &parameter.v, &parameter.mean})
        array->resize(numel);
      parameter.slots.resize(config.world_size);
    }
    units_.push_back({unit.compute_dtype.value_or(config.compute_dtype),
                      unit.reduce_dtype.value_or(config.reduce_dtype)});
  }
}

void ReferenceTrainer::AddGradient(int rank, int parameter, absl::Span<const float> gradient,
                                   bool full_precision) {
  Parameter& to = parameters_[parameter];
  const DType dtype = full_precision ? DType::kFp32 : units_[to.unit].reduce_dtype;
  to.touched = true;
  std::vector<float>& slot = to.slots[rank];
  const bool add = !slot.empty();
  slot.resize(gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float sum = add ? slot[i] + gradient[i] : gradient[i];
    slot[i] = RoundTo(dtype, sum);
  }
}

float ReferenceTrainer::Sum(const Parameter& parameter, size_t i) const {
  float sum = 0;
  size_t rank = 0;
  for (const int ranks : ranks_by_worker_) {
    float of_worker = 0;
    for (int k = 0; k < ranks; ++k, ++rank)
      of_worker += parameter.slots[rank].empty() ? 0.0f : parameter.slots[rank][i];
    sum += of_worker;
  }
  return sum;
}

void ReferenceTrainer::Reduce(int unit, bool full_precision) {
  const DType dtype = full_precision ? DType::kFp32 : units_[unit].reduce_dtype;
  const float factor = 1.0f / static_cast<float>(config_.world_size);
  for (Parameter& parameter : parameters_) {
    if (parameter.unit != unit) continue;
    for (size_t i = 0; i < parameter.mean.size(); ++i) {
      float mean = Sum(parameter, i) * factor;
      if (units_[unit].reduced) mean = parameter.mean[i] + mean;
      parameter.mean[i] = config_.keep_low_precision_gradients ? RoundTo(dtype, mean) : mean;
    }
    for (std::vector<float>& slot : parameter.slots) slot.clear();
  }
  units_[unit].reduced = true;
}

double ReferenceTrainer::Scale(const StepOptions& options, double total_weight) const {
  if (!options.weight.has_value()) return 1.0 / options.gradient_divisor;
  return config_.world_size / total_weight / options.gradient_divisor;
}

double ReferenceTrainer::Norm(const StepOptions& options, double total_weight) const {
  const double p = config_.gradient_norm_p;
  double norm = 0;
  for (const Parameter& parameter : parameters_) {
    if (!units_[parameter.unit].reduced) continue;
    for (const float value : parameter.mean) {
      const double magnitude = std::fabs(static_cast<double>(value));
      norm = std::isinf(p) ? std::max(norm, magnitude) : norm + std::pow(magnitude, p);
    }
  }
  return (std::isinf(p) ? norm : std::pow(norm, 1 / p)) * Scale(options, total_weight);
}

void ReferenceTrainer::UpdateSgd(const HyperParameters& numbers, float scale, Parameter* of) {
  const float decay = numbers.weight_decay, momentum = numbers.momentum;
  const float rate = numbers.learning_rate;
  for (size_t i = 0; i < of->p.size(); ++i) {
    float g = of->mean[i] * scale;
    if (decay != 0) g = g + of->p[i] * decay;
    if (momentum != 0 && of->updates > 1) g = of->m[i] * momentum + g;
    if (momentum != 0) of->m[i] = g;
    of->p[i] = of->p[i] - g * rate;
  }
}

void ReferenceTrainer::Update(const HyperParameters& numbers, double scale, Parameter* of) {
  if (config_.optimizer == OptimizerKind::kSgd) return UpdateSgd(numbers, scale, of);
  const bool decoupled = config_.optimizer == OptimizerKind::kAdamW;
  const float factor = scale;
  const float l2 = decoupled ? 0 : numbers.weight_decay;
  const float keep = decoupled ? 1.0 - numbers.learning_rate * numbers.weight_decay : 1.0;
  const float beta1 = numbers.beta1, rest1 = 1.0 - numbers.beta1;
  const float beta2 = numbers.beta2, rest2 = 1.0 - numbers.beta2;
  const float correction2 = 1.0 / std::sqrt(1.0 - std::pow(numbers.beta2, of->updates));
  const float size = numbers.learning_rate / (1.0 - std::pow(numbers.beta1, of->updates));
  const float epsilon = numbers.epsilon;
  for (size_t i = 0; i < of->p.size(); ++i) {
    float g = of->mean[i] * factor;
    if (l2 != 0) g = g + of->p[i] * l2;
    const float p = of->p[i] * keep;
    of->m[i] = of->m[i] * beta1 + g * rest1;
    of->v[i] = of->v[i] * beta2 + g * rest2 * g;
    of->p[i] = p - size * (of->m[i] / (std::sqrt(of->v[i]) * correction2 + epsilon));
  }
}

void ReferenceTrainer::Step(const StepOptions& options, double total_weight, double gradient_norm) {
  double scale = Scale(options, total_weight);
  if (config_.max_gradient_norm > 0)
    scale *= std::min(1.0, config_.max_gradient_norm / (gradient_norm + 1e-6));
  for (Parameter& parameter : parameters_) {
    if (!parameter.touched) continue;
    ++parameter.updates;
    const int group = GroupOf(config_, parameter.spec.name);
    HyperParameters numbers = config_.groups[group];
    if (!options.groups.empty()) numbers = options.groups[group];
    numbers.learning_rate *= options.learning_rate_scale;
    Update(numbers, scale, &parameter);
  }
  DropGradients();
}

void ReferenceTrainer::DropGradients() {
  for (Parameter& parameter : parameters_) {
    parameter.touched = false;
    std::fill(parameter.mean.begin(), parameter.mean.end(), 0.0f);
    for (std::vector<float>& slot : parameter.slots) slot.clear();
  }
  for (Unit& unit : units_) unit.reduced = false;
}

}  // namespace tessera::numerics
