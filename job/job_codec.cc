#include "job/job_codec.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "job/field_limits.h"

namespace tessera {
namespace {

absl::StatusOr<TensorSpec> DecodeParameter(const v1::ParameterSpec& parameter) {
  RETURN_IF_ERROR(CheckName("parameter", parameter.name()));
  const std::string context = absl::StrCat("parameter '", parameter.name(), "'");
  RETURN_IF_ERROR(CheckName(context + ": shared_with", parameter.shared_with()));
  // Bounded before it is copied: the message comes from outside.
  RETURN_IF_ERROR(
      CheckRange(context + ": number of dimensions", parameter.shape_size(), 0, kMaxDimensions));
  absl::StatusOr<DType> dtype = DecodeDType(parameter.dtype());
  if (!dtype.ok()) return Annotate(dtype.status(), context);
  TensorSpec spec;
  spec.name = parameter.name();
  spec.shape.assign(parameter.shape().begin(), parameter.shape().end());
  spec.dtype = *dtype;
  spec.requires_grad = parameter.requires_grad();
  spec.shared_with = parameter.shared_with();
  return spec;
}

absl::StatusOr<BufferSpec> DecodeBuffer(const v1::BufferSpec& buffer) {
  RETURN_IF_ERROR(CheckName("buffer", buffer.name()));
  const std::string context = absl::StrCat("buffer '", buffer.name(), "'");
  RETURN_IF_ERROR(
      CheckRange(context + ": number of dimensions", buffer.shape_size(), 0, kMaxDimensions));
  const std::optional<StoredDType> dtype = ParseStoredDType(buffer.dtype());
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(context, ": dtype '", PrintableUtf8(buffer.dtype().substr(0, kMaxNameBytes)),
                     "' is unknown"));
  }
  BufferSpec spec;
  spec.name = buffer.name();
  spec.dtype = *dtype;
  spec.shape.assign(buffer.shape().begin(), buffer.shape().end());
  return spec;
}

absl::StatusOr<Strategy> DecodeStrategy(v1::Strategy strategy) {
  switch (strategy) {
    case v1::STRATEGY_FULL_SHARD:
      return Strategy::kFullShard;
    case v1::STRATEGY_SHARD_GRAD_OP:
      return Strategy::kShardGradOp;
    case v1::STRATEGY_NO_SHARD:
      return Strategy::kNoShard;
    case v1::STRATEGY_HYBRID_SHARD:
      return Strategy::kHybridShard;
    case v1::STRATEGY_HYBRID_SHARD_ZERO2:
      return Strategy::kHybridShardZero2;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("strategy ", static_cast<int>(strategy), " is unknown"));
  }
}

absl::StatusOr<OptimizerKind> DecodeOptimizer(v1::OptimizerKind kind) {
  switch (kind) {
    case v1::OPTIMIZER_KIND_SGD:
      return OptimizerKind::kSgd;
    case v1::OPTIMIZER_KIND_ADAM:
      return OptimizerKind::kAdam;
    case v1::OPTIMIZER_KIND_ADAMW:
      return OptimizerKind::kAdamW;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("config: optimizer kind ", static_cast<int>(kind), " is unknown"));
  }
}

absl::StatusOr<BackwardPrefetch> DecodePrefetch(v1::BackwardPrefetch prefetch) {
  switch (prefetch) {
    case v1::BACKWARD_PREFETCH_NONE:
      return BackwardPrefetch::kNone;
    case v1::BACKWARD_PREFETCH_PRE:
      return BackwardPrefetch::kPre;
    case v1::BACKWARD_PREFETCH_POST:
      return BackwardPrefetch::kPost;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("config: backward_prefetch ", static_cast<int>(prefetch), " is unknown"));
  }
}

v1::BackwardPrefetch EncodePrefetch(BackwardPrefetch prefetch) {
  switch (prefetch) {
    case BackwardPrefetch::kNone:
      break;
    case BackwardPrefetch::kPre:
      return v1::BACKWARD_PREFETCH_PRE;
    case BackwardPrefetch::kPost:
      return v1::BACKWARD_PREFETCH_POST;
  }
  return v1::BACKWARD_PREFETCH_NONE;
}

ParamGroup DecodeGroup(const v1::ParamGroup& group) {
  ParamGroup decoded;
  static_cast<HyperParameters&>(decoded) = DecodeHyperParameters(group);
  decoded.parameter_names.assign(group.parameter_names().begin(), group.parameter_names().end());
  return decoded;
}

void EncodeGroup(const ParamGroup& group, v1::ParamGroup* encoded) {
  encoded->mutable_parameter_names()->Add(group.parameter_names.begin(),
                                          group.parameter_names.end());
  EncodeHyperParameters(group, encoded);
}

v1::OptimizerKind EncodeOptimizer(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return v1::OPTIMIZER_KIND_SGD;
    case OptimizerKind::kAdam:
      return v1::OPTIMIZER_KIND_ADAM;
    case OptimizerKind::kAdamW:
      return v1::OPTIMIZER_KIND_ADAMW;
  }
  return v1::OPTIMIZER_KIND_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<DType> DecodeDType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FP32:
      return DType::kFp32;
    case v1::DTYPE_BF16:
      return DType::kBf16;
    case v1::DTYPE_FP16:
      return DType::kFp16;
    case v1::DTYPE_FP64:
      return DType::kFp64;
    case v1::DTYPE_INT64:
      return DType::kInt64;
    case v1::DTYPE_INT32:
      return DType::kInt32;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype ", static_cast<int>(dtype), " is unknown"));
  }
}

v1::DType EncodeDType(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return v1::DTYPE_FP32;
    case DType::kBf16:
      return v1::DTYPE_BF16;
    case DType::kFp16:
      return v1::DTYPE_FP16;
    case DType::kFp64:
      return v1::DTYPE_FP64;
    case DType::kInt64:
      return v1::DTYPE_INT64;
    case DType::kInt32:
      return v1::DTYPE_INT32;
  }
  return v1::DTYPE_UNSPECIFIED;
}

v1::Strategy EncodeStrategy(Strategy strategy) {
  switch (strategy) {
    case Strategy::kFullShard:
      return v1::STRATEGY_FULL_SHARD;
    case Strategy::kShardGradOp:
      return v1::STRATEGY_SHARD_GRAD_OP;
    case Strategy::kNoShard:
      return v1::STRATEGY_NO_SHARD;
    case Strategy::kHybridShard:
      return v1::STRATEGY_HYBRID_SHARD;
    case Strategy::kHybridShardZero2:
      return v1::STRATEGY_HYBRID_SHARD_ZERO2;
  }
  return v1::STRATEGY_UNSPECIFIED;
}

namespace {

absl::Status DecodeUnitOptions(const v1::UnitSpec& unit, UnitSpec* decoded) {
  const auto decode = [&](v1::DType dtype, const char* field, std::optional<DType>* to) {
    // Unspecified: as the job has it.
    if (dtype == v1::DTYPE_UNSPECIFIED) return absl::OkStatus();
    absl::StatusOr<DType> known = DecodeDType(dtype);
    if (!known.ok()) {
      return Annotate(known.status(), absl::StrCat("unit '", unit.name(), "': ", field));
    }
    *to = *known;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(decode(unit.compute_dtype(), "compute_dtype", &decoded->compute_dtype));
  RETURN_IF_ERROR(decode(unit.reduce_dtype(), "reduce_dtype", &decoded->reduce_dtype));
  if (unit.strategy() == v1::STRATEGY_UNSPECIFIED) return absl::OkStatus();
  absl::StatusOr<Strategy> strategy = DecodeStrategy(unit.strategy());
  if (!strategy.ok()) {
    return Annotate(strategy.status(), absl::StrCat("unit '", unit.name(), "'"));
  }
  decoded->strategy = *strategy;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSpec> DecodeModel(const v1::ModelSpec& model) {
  // Counted before anything is decoded.
  int64_t num_parameters = 0;
  for (const v1::UnitSpec& unit : model.units()) num_parameters += unit.parameters_size();
  RETURN_IF_ERROR(CheckRange("number of units", model.units_size(), 0, kMaxParameters));
  RETURN_IF_ERROR(CheckRange("number of parameters", num_parameters, 0, kMaxParameters));
  ModelSpec decoded;
  for (const v1::UnitSpec& unit : model.units()) {
    RETURN_IF_ERROR(CheckName("unit", unit.name()));
    UnitSpec& decoded_unit = decoded.units.emplace_back();
    decoded_unit.name = unit.name();
    RETURN_IF_ERROR(DecodeUnitOptions(unit, &decoded_unit));
    decoded_unit.parameters.reserve(unit.parameters_size());
    for (const v1::ParameterSpec& parameter : unit.parameters()) {
      absl::StatusOr<TensorSpec> spec = DecodeParameter(parameter);
      if (!spec.ok()) return Annotate(spec.status(), absl::StrCat("unit '", unit.name(), "'"));
      decoded_unit.parameters.push_back(*std::move(spec));
    }
  }
  RETURN_IF_ERROR(CheckRange("number of buffers", model.buffers_size(), 0, kMaxBuffers));
  for (const v1::BufferSpec& buffer : model.buffers()) {
    ASSIGN_OR_RETURN(BufferSpec spec, DecodeBuffer(buffer));
    decoded.buffers.push_back(std::move(spec));
  }
  return decoded;
}

absl::StatusOr<JobConfig> DecodeJobConfig(const v1::JobConfig& config) {
  JobConfig decoded;
  RETURN_IF_ERROR(CheckRange("config: world_size", config.world_size(), 1, kMaxWorldSize));
  decoded.world_size = config.world_size();
  absl::StatusOr<Strategy> strategy = DecodeStrategy(config.strategy());
  if (!strategy.ok()) return Annotate(strategy.status(), "config");
  decoded.strategy = *strategy;
  RETURN_IF_ERROR(
      CheckRange("config: shard_group_size", config.shard_group_size(), 0, kMaxWorldSize));
  decoded.shard_group_size = config.shard_group_size();
  RETURN_IF_ERROR(
      CheckRange("config: reshard_group_size", config.reshard_group_size(), 0, kMaxWorldSize));
  decoded.reshard_group_size = config.reshard_group_size();
  absl::StatusOr<DType> compute = DecodeDType(config.compute_dtype());
  if (!compute.ok()) return Annotate(compute.status(), "config: compute_dtype");
  decoded.compute_dtype = *compute;
  absl::StatusOr<DType> reduce = DecodeDType(config.reduce_dtype());
  if (!reduce.ok()) return Annotate(reduce.status(), "config: reduce_dtype");
  decoded.reduce_dtype = *reduce;
  decoded.keep_low_precision_gradients = config.keep_low_precision_gradients();
  decoded.layout.parameter_alignment_bytes = config.parameter_alignment_bytes();
  decoded.layout.shard_alignment_bytes = config.shard_alignment_bytes();
  decoded.layout.alignment_dtype = decoded.compute_dtype;
  ASSIGN_OR_RETURN(decoded.optimizer, DecodeOptimizer(config.optimizer().kind()));
  decoded.groups.clear();  // Of the default one.
  for (const v1::ParamGroup& group : config.optimizer().groups()) {
    decoded.groups.push_back(DecodeGroup(group));
  }
  decoded.max_gradient_norm = config.max_gradient_norm();
  // 0 is a field that was not set: the default stays.
  if (config.gradient_norm_p() != 0) decoded.gradient_norm_p = config.gradient_norm_p();
  decoded.max_gathered_units = config.max_gathered_units();
  decoded.shard_check_interval_steps = config.shard_check_interval_steps();
  decoded.max_gathered_bytes = config.max_gathered_bytes();
  decoded.gradient_slots = config.gradient_slots();
  // Bounded, so that deadlines computed from it do not overflow.
  RETURN_IF_ERROR(CheckRange("config: collective_timeout_ms", config.collective_timeout_ms(), 0,
                             int64_t{7} * 24 * 3600 * 1000));
  decoded.collective_timeout = absl::Milliseconds(config.collective_timeout_ms());
  ASSIGN_OR_RETURN(decoded.backward_prefetch, DecodePrefetch(config.backward_prefetch()));
  decoded.fake_all_gather = config.fake_all_gather();
  decoded.fake_reduce_scatter = config.fake_reduce_scatter();
  decoded.optimizer_in_backward = config.optimizer_in_backward();
  decoded.cpu_offload = config.cpu_offload();
  decoded.forward_prefetch = config.forward_prefetch();
  return decoded;
}

v1::ModelSpec EncodeModel(const ModelSpec& model) {
  v1::ModelSpec encoded;
  for (const UnitSpec& unit : model.units) {
    v1::UnitSpec* encoded_unit = encoded.add_units();
    encoded_unit->set_name(unit.name);
    if (unit.compute_dtype) encoded_unit->set_compute_dtype(EncodeDType(*unit.compute_dtype));
    if (unit.strategy) encoded_unit->set_strategy(EncodeStrategy(*unit.strategy));
    if (unit.reduce_dtype) encoded_unit->set_reduce_dtype(EncodeDType(*unit.reduce_dtype));
    for (const TensorSpec& parameter : unit.parameters) {
      v1::ParameterSpec* spec = encoded_unit->add_parameters();
      spec->set_name(parameter.name);
      spec->mutable_shape()->Add(parameter.shape.begin(), parameter.shape.end());
      spec->set_dtype(EncodeDType(parameter.dtype));
      spec->set_requires_grad(parameter.requires_grad);
      spec->set_shared_with(parameter.shared_with);
    }
  }
  for (const BufferSpec& buffer : model.buffers) {
    v1::BufferSpec* spec = encoded.add_buffers();
    spec->set_name(buffer.name);
    spec->set_dtype(std::string(Name(buffer.dtype)));
    spec->mutable_shape()->Add(buffer.shape.begin(), buffer.shape.end());
  }
  return encoded;
}

v1::JobConfig EncodeJobConfig(const JobConfig& config) {
  v1::JobConfig encoded;
  encoded.set_world_size(config.world_size);
  encoded.set_strategy(EncodeStrategy(config.strategy));
  encoded.set_shard_group_size(config.shard_group_size);
  encoded.set_reshard_group_size(config.reshard_group_size);
  encoded.set_compute_dtype(EncodeDType(config.compute_dtype));
  encoded.set_reduce_dtype(EncodeDType(config.reduce_dtype));
  encoded.set_keep_low_precision_gradients(config.keep_low_precision_gradients);
  encoded.set_parameter_alignment_bytes(config.layout.parameter_alignment_bytes);
  encoded.set_shard_alignment_bytes(config.layout.shard_alignment_bytes);
  encoded.mutable_optimizer()->set_kind(EncodeOptimizer(config.optimizer));
  for (const ParamGroup& group : config.groups) {
    EncodeGroup(group, encoded.mutable_optimizer()->add_groups());
  }
  encoded.set_max_gradient_norm(config.max_gradient_norm);
  encoded.set_gradient_norm_p(config.gradient_norm_p);
  encoded.set_max_gathered_units(config.max_gathered_units);
  encoded.set_shard_check_interval_steps(config.shard_check_interval_steps);
  encoded.set_max_gathered_bytes(config.max_gathered_bytes);
  encoded.set_gradient_slots(config.gradient_slots);
  encoded.set_collective_timeout_ms(absl::ToInt64Milliseconds(config.collective_timeout));
  encoded.set_backward_prefetch(EncodePrefetch(config.backward_prefetch));
  encoded.set_fake_all_gather(config.fake_all_gather);
  encoded.set_fake_reduce_scatter(config.fake_reduce_scatter);
  encoded.set_optimizer_in_backward(config.optimizer_in_backward);
  encoded.set_cpu_offload(config.cpu_offload);
  encoded.set_forward_prefetch(config.forward_prefetch);
  return encoded;
}

HyperParameters DecodeHyperParameters(const v1::ParamGroup& numbers) {
  HyperParameters decoded;
  decoded.learning_rate = numbers.learning_rate();
  decoded.beta1 = numbers.beta1();
  decoded.beta2 = numbers.beta2();
  decoded.epsilon = numbers.epsilon();
  decoded.weight_decay = numbers.weight_decay();
  decoded.momentum = numbers.momentum();
  return decoded;
}

void EncodeHyperParameters(const HyperParameters& numbers, v1::ParamGroup* encoded) {
  encoded->set_learning_rate(numbers.learning_rate);
  encoded->set_beta1(numbers.beta1);
  encoded->set_beta2(numbers.beta2);
  encoded->set_epsilon(numbers.epsilon);
  encoded->set_weight_decay(numbers.weight_decay);
  encoded->set_momentum(numbers.momentum);
}

}  // namespace tessera
