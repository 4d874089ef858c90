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

double RoundTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kBf16:
      return RoundToBits(static_cast<float>(value), 7, -126, std::ldexp(255.0, 120));
    case DType::kFp16:
      return RoundToBits(static_cast<float>(value), 10, -14, 65504);
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
    const DType full = unit.parameters[0].dtype;
    const auto own = [full](DType dtype) { return IsHalf(dtype) ? dtype : full; };
    units_.push_back({full, own(unit.compute_dtype.value_or(config.compute_dtype)),
                      own(unit.reduce_dtype.value_or(config.reduce_dtype))});
  }
}

void ReferenceTrainer::AddGradient(int rank, int parameter, absl::Span<const double> gradient,
                                   bool full_precision) {
  Parameter& to = parameters_[parameter];
  const Unit& unit = units_[to.unit];
  const DType dtype = full_precision ? unit.full_dtype : unit.reduce_dtype;
  to.touched = true;
  std::vector<double>& slot = to.slots[rank];
  const bool add = !slot.empty();
  slot.resize(gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) {
    double sum = add ? slot[i] + gradient[i] : gradient[i];
    // Of two floats, rounded twice: what one rounding gives.
    if (unit.full_dtype == DType::kFp32) sum = static_cast<float>(sum);
    slot[i] = RoundTo(dtype, sum);
  }
}

template <typename Real>
Real ReferenceTrainer::Sum(const Parameter& parameter, size_t i) const {
  Real sum = 0;
  size_t rank = 0;
  for (const int ranks : ranks_by_worker_) {
    Real of_worker = 0;
    for (int k = 0; k < ranks; ++k, ++rank) {
      const std::vector<double>& slot = parameter.slots[rank];
      of_worker += slot.empty() ? Real(0) : static_cast<Real>(slot[i]);
    }
    sum += of_worker;
  }
  return sum;
}

template <typename Real>
void ReferenceTrainer::ReduceParameter(DType dtype, Parameter* parameter) {
  const Real factor = Real(1) / static_cast<Real>(config_.world_size);
  for (size_t i = 0; i < parameter->mean.size(); ++i) {
    Real mean = Sum<Real>(*parameter, i) * factor;
    if (units_[parameter->unit].reduced) mean = static_cast<Real>(parameter->mean[i]) + mean;
    parameter->mean[i] = config_.keep_low_precision_gradients ? RoundTo(dtype, mean) : mean;
  }
}

void ReferenceTrainer::Reduce(int unit, bool full_precision) {
  const DType full = units_[unit].full_dtype;
  const DType dtype = full_precision ? full : units_[unit].reduce_dtype;
  for (Parameter& parameter : parameters_) {
    if (parameter.unit != unit) continue;
    if (full == DType::kFp64) ReduceParameter<double>(dtype, &parameter);
    if (full == DType::kFp32) ReduceParameter<float>(dtype, &parameter);
    for (std::vector<double>& slot : parameter.slots) slot.clear();
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
    for (const double value : parameter.mean) {
      const double magnitude = std::fabs(value);
      norm = std::isinf(p) ? std::max(norm, magnitude) : norm + std::pow(magnitude, p);
    }
  }
  return (std::isinf(p) ? norm : std::pow(norm, 1 / p)) * Scale(options, total_weight);
}

template <typename Real>
void ReferenceTrainer::UpdateSgd(const HyperParameters& numbers, Real scale, Parameter* of) {
  const Real decay = numbers.weight_decay, momentum = numbers.momentum;
  const Real rate = numbers.learning_rate;
  for (size_t i = 0; i < of->p.size(); ++i) {
    const Real p = of->p[i], m = of->m[i];
    Real g = static_cast<Real>(of->mean[i]) * scale;
    if (decay != 0) g = g + p * decay;
    if (momentum != 0 && of->updates > 1) g = m * momentum + g;
    if (momentum != 0) of->m[i] = g;
    of->p[i] = p - g * rate;
  }
}

template <typename Real>
void ReferenceTrainer::Update(const HyperParameters& numbers, double scale, Parameter* of) {
  if (config_.optimizer == OptimizerKind::kSgd) return UpdateSgd<Real>(numbers, scale, of);
  const bool decoupled = config_.optimizer == OptimizerKind::kAdamW;
  const Real factor = scale;
  const Real l2 = decoupled ? 0 : numbers.weight_decay;
  const Real keep = decoupled ? 1.0 - numbers.learning_rate * numbers.weight_decay : 1.0;
  const Real beta1 = numbers.beta1, rest1 = 1.0 - numbers.beta1;
  const Real beta2 = numbers.beta2, rest2 = 1.0 - numbers.beta2;
  const Real correction2 = 1.0 / std::sqrt(1.0 - std::pow(numbers.beta2, of->updates));
  const Real size = numbers.learning_rate / (1.0 - std::pow(numbers.beta1, of->updates));
  const Real epsilon = numbers.epsilon;
  for (size_t i = 0; i < of->p.size(); ++i) {
    const Real before = of->p[i];
    Real g = static_cast<Real>(of->mean[i]) * factor;
    if (l2 != 0) g = g + before * l2;
    const Real p = before * keep;
    const Real m = static_cast<Real>(of->m[i]) * beta1 + g * rest1;
    const Real v = static_cast<Real>(of->v[i]) * beta2 + g * rest2 * g;
    of->m[i] = m;
    of->v[i] = v;
    of->p[i] = p - size * (m / (std::sqrt(v) * correction2 + epsilon));
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
    if (units_[parameter.unit].full_dtype == DType::kFp64) {
      Update<double>(numbers, scale, &parameter);
    } else {
      Update<float>(numbers, scale, &parameter);
    }
  }
  DropGradients();
}

void ReferenceTrainer::DropGradients() {
  for (Parameter& parameter : parameters_) {
    parameter.touched = false;
    std::fill(parameter.mean.begin(), parameter.mean.end(), 0.0);
    for (std::vector<double>& slot : parameter.slots) slot.clear();
  }
  for (Unit& unit : units_) unit.reduced = false;
}

}  // namespace tessera::numerics
