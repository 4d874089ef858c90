#include "worker/engine/sharded_optimizer.h"

#include <cmath>
#include <utility>

#include "job/param_groups.h"

namespace tessera {
namespace {

// `update`: of this parameter; 1 is the first.
host::AdamParams AdamParamsOf(const HyperParameters& group, const OptimizerStep& step,
                              int64_t update, bool decoupled) {
  host::AdamParams params = {};
  params.learning_rate = group.learning_rate;
  params.beta1 = group.beta1;
  params.beta2 = group.beta2;
  params.epsilon = group.epsilon;
  params.weight_decay = group.weight_decay;
  // In double: with beta near 1 the difference from 1 would lose most of its bits in fp32.
  params.bias_correction1 = 1.0 - std::pow(group.beta1, update);
  params.bias_correction2 = 1.0 - std::pow(group.beta2, update);
  params.gradient_scale = step.gradient_scale;
  params.decoupled_weight_decay = decoupled;
  return params;
}

host::SgdParams SgdParamsOf(const HyperParameters& group, const OptimizerStep& step,
                            int64_t update) {
  host::SgdParams params = {};
  params.learning_rate = group.learning_rate;
  params.momentum = group.momentum;
  params.weight_decay = group.weight_decay;
  params.gradient_scale = step.gradient_scale;
  params.first_step = update == 1;
  return params;
}

int64_t SizeBytesOf(const ShardSegment& segment) {
  return segment.numel * SizeBytes(segment.dtype);
}

}  // namespace

std::vector<ShardSegment> SegmentsOf(const ModelLayout& layout, const JobConfig& config,
                                     const JobMemory& memory, Rank rank) {
  const ParamGroups groups(config);
  std::vector<ShardSegment> segments;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const UnitLayout& unit = layout.units[u];
    const ElementRange slice = unit.shards.RangeOf(rank);
    const std::vector<PlacedParameter>& parameters = unit.flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const ElementRange whole = {parameters[p].offset_elements,
                                  parameters[p].offset_elements + parameters[p].numel};
      const ElementRange part = Intersect(whole, slice);
      if (part.empty()) continue;
      ShardSegment segment;
      segment.unit = u;
      segment.parameter = p;
      segment.job_parameter = memory.units()[u].first_parameter + p;
      segment.unit_begin_elements = part.begin;
      segment.parameter_begin_elements = part.begin - whole.begin;
      segment.state_begin_elements =
          memory.units()[u].shard_offset_elements + part.begin - slice.begin;
      segment.numel = part.size();
      segment.group = groups[parameters[p].spec.name];
      segment.requires_grad = parameters[p].spec.requires_grad;
      segment.dtype = memory.units()[u].full_dtype;
      segments.push_back(segment);
    }
  }
  return segments;
}

ShardedOptimizer::ShardedOptimizer(const JobConfig& config, const JobMemory& memory,
                                   std::vector<ShardSegment> segments, std::byte* state,
                                   std::vector<UnitParameters> parameters, RankKernels* kernels)
    : config_(config),
      memory_(memory),
      segments_(std::move(segments)),
      state_(state),
      parameters_(std::move(parameters)),
      kernels_(kernels) {}

std::byte* ShardedOptimizer::State(StateArray array, int version,
                                   const ShardSegment& segment) const {
  return state_ + memory_.StateOffsetBytes(array, version) +
         segment.state_begin_elements * SizeBytes(segment.dtype);
}

ShardedOptimizer::Published ShardedOptimizer::PublishedAt(const ShardSegment& segment) const {
  const UnitMemory& placed = memory_.units()[segment.unit];
  const int64_t in_slice = segment.state_begin_elements - placed.shard_offset_elements;
  // The own slice of the unsharded parameters is what peers and trainers read.
  std::byte* at = parameters_[segment.unit].own_slice + in_slice * SizeBytes(placed.compute_dtype);
  if (!IsHalf(placed.compute_dtype)) return {at, {}};
  return {nullptr, {reinterpret_cast<uint16_t*>(at), placed.compute_dtype}};
}

void ShardedOptimizer::PublishFullPrecision(int unit, int64_t step) {
  // Shared by the ranks of this host: each writes its own slice, and a collective follows.
  std::byte* full = parameters_[unit].full;
  for (const ShardSegment& segment : segments_) {
    if (segment.unit != unit) continue;
    kernels_->Copy(full + segment.unit_begin_elements * SizeBytes(segment.dtype),
                   State(StateArray::kParameter, step % 2, segment), SizeBytesOf(segment));
  }
}

// Whether `b` begins where `a` ends, and the step does the same to both.
bool ShardedOptimizer::Continues(const ShardSegment& a, const ShardSegment& b,
                                 const OptimizerStep& step) {
  return a.unit == b.unit && a.group == b.group && a.requires_grad == b.requires_grad &&
         a.state_begin_elements + a.numel == b.state_begin_elements &&
         a.unit_begin_elements + a.numel == b.unit_begin_elements &&
         // Their bias corrections differ where these do.
         step.updates[a.job_parameter] == step.updates[b.job_parameter];
}

// Parameters with adjacent elements are one run: a pass of its own for each small one
// would cost more to begin than to make, on a GPU above all.
template <typename Body>
void ShardedOptimizer::ForEachRun(const OptimizerStep& step, Body body) const {
  for (size_t i = 0; i < segments_.size();) {
    ShardSegment run = segments_[i];
    for (++i; i < segments_.size() && Continues(run, segments_[i], step); ++i)
      run.numel += segments_[i].numel;
    body(run);
  }
}

void ShardedOptimizer::Apply(const OptimizerStep& step, const std::vector<bool>& early) {
  ForEachRun(step, [&](const ShardSegment& run) {
    // Early updates wrote the state alone. Their values are published here, after the decision.
    if (early.empty() || !early[run.unit]) {
      ApplySegment(run, step, PublishedAt(run), kernels_);
    } else if (run.requires_grad && step.updates[run.job_parameter] != 0) {
      PublishValues(run, State(StateArray::kParameter, step.step % 2, run));
    }
  });
}

void ShardedOptimizer::UpdateEarly(int unit, const OptimizerStep& step, RankKernels* kernels) {
  ForEachRun(step, [&](const ShardSegment& run) {
    // An empty Published: before the decision nobody may see the values.
    if (run.unit == unit) ApplySegment(run, step, Published(), kernels);
  });
}

void ShardedOptimizer::CopyFromVersionBefore(StateArray array, const ShardSegment& segment,
                                             int64_t step) {
  CopyVersion(array, segment, step, kernels_);
}

void ShardedOptimizer::CopyVersion(StateArray array, const ShardSegment& segment, int64_t step,
                                   RankKernels* kernels) {
  // Version v is only read: an executor that dies here leaves it whole.
  kernels->Copy(State(array, step % 2, segment), State(array, (step - 1) % 2, segment),
                SizeBytesOf(segment));
}

void ShardedOptimizer::CarryMomentsOver(const ShardSegment& segment, int64_t step,
                                        RankKernels* kernels) {
  if (!segment.requires_grad) return;
  // A frozen parameter has no update, so nothing reads its moments.
  for (const StateArray moment : Moments()) CopyVersion(moment, segment, step, kernels);
}

void ShardedOptimizer::PublishValues(const ShardSegment& segment, const std::byte* values) {
  // In the compute dtype, at an address that never changes: trainers map it (docs/adr/0006).
  const auto [full, half] = PublishedAt(segment);
  if (full != nullptr) {
    kernels_->Copy(full, values, SizeBytesOf(segment));
  } else {
    kernels_->CastToHalf(ConstValues(values, segment.numel, segment.dtype), half);
  }
}

void ShardedOptimizer::Stage(StateArray array, int unit, const std::byte* unsharded, int64_t step) {
  for (const ShardSegment& segment : segments_) {
    if (segment.unit != unit) continue;
    if (unsharded == nullptr) {
      CopyFromVersionBefore(array, segment, step);
      continue;
    }
    kernels_->Copy(State(array, step % 2, segment),
                   unsharded + segment.unit_begin_elements * SizeBytes(segment.dtype),
                   SizeBytesOf(segment));
  }
}

Values ShardedOptimizer::Staged(StateArray array, const ShardSegment& segment, int64_t step) const {
  return {State(array, step % 2, segment), segment.numel, segment.dtype};
}

std::vector<StateArray> ShardedOptimizer::Moments() const { return MomentsOf(config_.optimizer); }

void ShardedOptimizer::BeginInitial() {
  for (const ShardSegment& segment : segments_) {
    for (const StateArray array :
         {StateArray::kParameter, StateArray::kFirstMoment, StateArray::kSecondMoment})
      // An attempt that died may have set what this one leaves as it is.
      kernels_->Clear(State(array, 0, segment), SizeBytesOf(segment));
  }
}

void ShardedOptimizer::Publish(int64_t step) {
  for (const ShardSegment& segment : segments_)
    PublishValues(segment, State(StateArray::kParameter, step % 2, segment));
}

void ShardedOptimizer::ApplyStaged(int64_t step, bool with_moments, bool is_published) {
  for (const ShardSegment& segment : segments_) {
    // Parameters were set, moments were not: the new version has those of the one before.
    if (!with_moments) CarryMomentsOver(segment, step, kernels_);
    // A load has stored them there on its way (docs/adr/0054).
    if (is_published) continue;
    PublishValues(segment, State(StateArray::kParameter, step % 2, segment));
  }
}

// What is carried over stays as it is for trainers, too.
void ShardedOptimizer::ApplySegment(const ShardSegment& segment, const OptimizerStep& step,
                                    const Published& published, RankKernels* kernels) {
  if (segment.requires_grad && step.updates[segment.job_parameter] != 0)
    return UpdateSegment(segment, step, published, kernels);
  // Both versions are complete: what has no update is copied, since the older version is two steps
  // old.
  CopyVersion(StateArray::kParameter, segment, step.step, kernels);
  CarryMomentsOver(segment, step.step, kernels);
}

void ShardedOptimizer::UpdateSegment(const ShardSegment& segment, const OptimizerStep& step,
                                     const Published& published, RankKernels* kernels) {
  const int64_t update = step.updates[segment.job_parameter];
  // Two versions that never meet: whatever dies in between, `from` stays as it is (docs/adr/0003).
  const int from = (step.step - 1) % 2;
  const int to = step.step % 2;
  UpdateArrays arrays;
  arrays.dtype = segment.dtype;
  arrays.count = segment.numel;
  arrays.gradient = state_ + memory_.ReducedGradientOffsetBytes() +
                    segment.state_begin_elements * SizeBytes(segment.dtype);
  arrays.p_in = State(StateArray::kParameter, from, segment);
  arrays.m_in = State(StateArray::kFirstMoment, from, segment);
  arrays.v_in = State(StateArray::kSecondMoment, from, segment);
  arrays.p_out = State(StateArray::kParameter, to, segment);
  arrays.m_out = State(StateArray::kFirstMoment, to, segment);
  arrays.v_out = State(StateArray::kSecondMoment, to, segment);
  arrays.publish_full = published.full;
  arrays.publish_half = published.half;
  const HyperParameters& group = step.groups[segment.group];
  if (config_.optimizer == OptimizerKind::kSgd) {
    kernels->SgdStep(SgdParamsOf(group, step, update), arrays);
    // It left the buffers alone; a later step may have momentum again.
    // Only if some update ever had momentum: else both versions hold zeroes.
    if (group.momentum == 0 && step.has_momentum)
      CopyVersion(StateArray::kFirstMoment, segment, step.step, kernels);
  } else {
    kernels->AdamStep(AdamParamsOf(group, step, update, config_.optimizer == OptimizerKind::kAdamW),
                      arrays);
  }
}

void ShardedOptimizer::Initialize(int unit, const std::byte* unsharded) {
  for (const ShardSegment& segment : segments_) {
    if (segment.unit != unit) continue;
    const std::byte* values = unsharded + segment.unit_begin_elements * SizeBytes(segment.dtype);
    const int64_t size_bytes = SizeBytesOf(segment);
    std::byte* parameter = State(StateArray::kParameter, 0, segment);
    kernels_->Copy(parameter, values, size_bytes);
    kernels_->Clear(State(StateArray::kFirstMoment, 0, segment), size_bytes);
    kernels_->Clear(State(StateArray::kSecondMoment, 0, segment), size_bytes);
    PublishValues(segment, parameter);
  }
}

}  // namespace tessera
