#include "worker/memory/job_codec.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

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
      return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", static_cast<int>(dtype)));
  }
}

void EncodeGroup(const ParamGroup& group, v1::ParamGroup* out) {
  for (const std::string& name : group.parameter_names) out->add_parameter_names(name);
  out->set_learning_rate(group.learning_rate);
  out->set_beta1(group.beta1);
  out->set_beta2(group.beta2);
  out->set_epsilon(group.epsilon);
  out->set_weight_decay(group.weight_decay);
  out->set_momentum(group.momentum);
}

ParamGroup DecodeGroup(const v1::ParamGroup& group) {
  ParamGroup out;
  out.parameter_names.assign(group.parameter_names().begin(), group.parameter_names().end());
  out.learning_rate = group.learning_rate();
  out.beta1 = group.beta1();
  out.beta2 = group.beta2();
  out.epsilon = group.epsilon();
  out.weight_decay = group.weight_decay();
  out.momentum = group.momentum();
  return out;
}

}  // namespace

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

v1::ModelSpec EncodeModel(const ModelSpec& model) {
  v1::ModelSpec out;
  for (const UnitSpec& unit : model.units) {
    v1::UnitSpec* wire_unit = out.add_units();
    wire_unit->set_name(unit.name);
    for (const TensorSpec& spec : unit.parameters) {
      v1::ParameterSpec* parameter = wire_unit->add_parameters();
      parameter->set_name(spec.name);
      for (int64_t dim : spec.shape) parameter->add_shape(dim);
      parameter->set_dtype(EncodeDType(spec.dtype));
      parameter->set_requires_grad(spec.requires_grad);
      parameter->set_shared_with(spec.shared_with);
    }
  }
  return out;
}

absl::StatusOr<ModelSpec> DecodeModel(const v1::ModelSpec& model) {
  ModelSpec out;
  for (const v1::UnitSpec& wire_unit : model.units()) {
    UnitSpec& unit = out.units.emplace_back();
    unit.name = wire_unit.name();
    for (const v1::ParameterSpec& parameter : wire_unit.parameters()) {
      TensorSpec& spec = unit.parameters.emplace_back();
      spec.name = parameter.name();
      spec.shape.assign(parameter.shape().begin(), parameter.shape().end());
      absl::StatusOr<DType> dtype = DecodeDType(parameter.dtype());
      if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat("parameter '", spec.name, "'"));
      spec.dtype = *dtype;
      spec.requires_grad = parameter.requires_grad();
      spec.shared_with = parameter.shared_with();
    }
  }
  return out;
}

v1::JobConfig EncodeJobConfig(const JobConfig& config) {
  v1::JobConfig out;
  out.set_world_size(config.world_size);
  out.set_strategy(static_cast<v1::Strategy>(static_cast<int>(config.strategy) + 1));
  out.set_compute_dtype(EncodeDType(config.compute_dtype));
  out.set_reduce_dtype(EncodeDType(config.reduce_dtype));
  out.set_parameter_alignment_bytes(config.layout.parameter_alignment_bytes);
  out.set_shard_alignment_bytes(config.layout.shard_alignment_bytes);
  out.mutable_optimizer()->set_kind(
      static_cast<v1::OptimizerKind>(static_cast<int>(config.optimizer) + 1));
  for (const ParamGroup& group : config.groups) {
    EncodeGroup(group, out.mutable_optimizer()->add_groups());
  }
  out.set_max_gradient_norm(config.max_gradient_norm);
  out.set_max_gathered_units(config.max_gathered_units);
  out.set_gradient_slots(config.gradient_slots);
  out.set_collective_timeout_ms(absl::ToInt64Milliseconds(config.collective_timeout));
  out.set_backward_prefetch(config.backward_prefetch);
  return out;
}

absl::StatusOr<JobConfig> DecodeJobConfig(const v1::JobConfig& config) {
  JobConfig out;
  out.world_size = config.world_size();
  if (config.strategy() < v1::STRATEGY_FULL_SHARD || config.strategy() > v1::STRATEGY_NO_SHARD) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown strategy ", static_cast<int>(config.strategy())));
  }
  out.strategy = static_cast<Strategy>(config.strategy() - 1);
  ASSIGN_OR_RETURN(out.compute_dtype, DecodeDType(config.compute_dtype()));
  ASSIGN_OR_RETURN(out.reduce_dtype, DecodeDType(config.reduce_dtype()));
  out.layout.parameter_alignment_bytes = config.parameter_alignment_bytes();
  out.layout.shard_alignment_bytes = config.shard_alignment_bytes();
  out.layout.alignment_dtype = out.compute_dtype;
  const v1::OptimizerKind kind = config.optimizer().kind();
  if (kind < v1::OPTIMIZER_KIND_SGD || kind > v1::OPTIMIZER_KIND_ADAMW) {
    return absl::InvalidArgumentError(absl::StrCat("unknown optimizer ", static_cast<int>(kind)));
  }
  out.optimizer = static_cast<OptimizerKind>(kind - 1);
  out.groups.clear();
  for (const v1::ParamGroup& group : config.optimizer().groups())
    out.groups.push_back(DecodeGroup(group));
  out.max_gradient_norm = config.max_gradient_norm();
  out.max_gathered_units = config.max_gathered_units();
  out.gradient_slots = config.gradient_slots();
  out.collective_timeout = absl::Milliseconds(config.collective_timeout_ms());
  out.backward_prefetch = config.backward_prefetch();
  return out;
}

}  // namespace tessera
