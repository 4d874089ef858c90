#include "job/job_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

using GroupByName = absl::flat_hash_map<absl::string_view, size_t>;

// Groups go by the names of primary parameters, so an alias alone would have no effect.
absl::Status ValidateAliasGroups(const GroupByName& group_of, const ModelSpec& model) {
  for (const UnitSpec& unit : model.units) {
    for (const TensorSpec& spec : unit.parameters) {
      const auto alias = group_of.find(spec.name), primary = group_of.find(spec.shared_with);
      if (spec.shared_with.empty() || alias == group_of.end()) continue;
      if (primary != group_of.end() && primary->second == alias->second) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "param group ", alias->second, ": '", spec.name, "' is another name of parameter '",
          spec.shared_with, "', which is in param group ",
          primary == group_of.end() ? 0 : primary->second, ": name '", spec.shared_with,
          "' in param group ", alias->second));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateGroups(const JobConfig& config, const ModelSpec& model) {
  if (config.groups.empty()) return absl::InvalidArgumentError("optimizer: no param group");
  if (config.groups.size() > kMaxParamGroups) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer: ", config.groups.size(),
                                                   " param groups; at most ", kMaxParamGroups));
  }
  absl::flat_hash_set<absl::string_view> known;
  for (const UnitSpec& unit : model.units) {
    for (const TensorSpec& spec : unit.parameters) known.insert(spec.name);
  }
  GroupByName group_of;  // Without those of group 0.
  for (size_t i = 0; i < config.groups.size(); ++i) {
    RETURN_IF_ERROR(ValidateHyperParameters(config.groups[i], i));
    // Group 0 has all parameters that no other group names.
    if ((i == 0) != config.groups[i].parameter_names.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "param group ", i,
          i == 0 ? ": is the default one and names parameters" : ": names no parameter"));
    }
    for (const std::string& name : config.groups[i].parameter_names) {
      if (!known.contains(name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("param group ", i, ": the model has no parameter '", name, "'"));
      }
      if (!group_of.emplace(name, i).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameter '", name, "' is in two param groups"));
      }
    }
  }
  return ValidateAliasGroups(group_of, model);
}

bool IsTrainingDType(DType dtype) { return dtype == DType::kFp32 || IsHalf(dtype); }

absl::Status ValidateStrategies(const JobConfig& config, const ModelSpec& model) {
  Strategy hybrid = config.strategy;
  for (const UnitSpec& unit : model.units) {
    if (unit.strategy.has_value() && IsHybrid(*unit.strategy)) hybrid = *unit.strategy;
  }
  const int group = config.shard_group_size;
  if (!IsHybrid(hybrid)) {
    if (group == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("config: shard_group_size ", group, " where no unit is hybrid"));
  }
  if (group < 1 || config.world_size % group != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config: ", Name(hybrid), " needs a shard_group_size (ranks of one worker that have the ",
        "model once) that divides world_size ", config.world_size, "; it is ", group));
  }
  return absl::OkStatus();
}

absl::Status ValidateResharding(const JobConfig& config, const ModelSpec& model) {
  const int group = config.reshard_group_size;
  if (group == 0) return absl::OkStatus();
  if (group <= 1 || group >= config.world_size || config.world_size % group != 0) {
    return absl::InvalidArgumentError(absl::StrCat("config: reshard_group_size ", group,
                                                   " does not divide world_size ",
                                                   config.world_size, " between the two"));
  }
  for (const UnitSpec& unit : model.units) {
    if (unit.strategy.value_or(config.strategy) == Strategy::kFullShard) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("config: reshard_group_size ", group, " where no unit is FULL_SHARD"));
}

absl::Status ValidateUnits(const ModelSpec& model) {
  for (const UnitSpec& unit : model.units) {
    for (const std::optional<DType>& dtype : {unit.compute_dtype, unit.reduce_dtype}) {
      if (!dtype.has_value() || IsTrainingDType(*dtype)) continue;
      return absl::InvalidArgumentError(absl::StrCat("unit '", unit.name,
                                                     "': compute or reduce dtype ", Name(*dtype),
                                                     ": fp32, bf16 or fp16"));
    }
    for (const TensorSpec& spec : unit.parameters) {
      if (spec.dtype == FullDType(spec.dtype)) continue;
      return absl::InvalidArgumentError(absl::StrCat("unit '", unit.name, "': parameter '",
                                                     spec.name, "' is ", Name(spec.dtype),
                                                     "; shards are fp32 or fp64"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateBuffers(const ModelSpec& model) {
  // Counted down, so that no sum can overflow.
  int64_t left_bytes = kMaxBufferBytes;
  for (const BufferSpec& buffer : model.buffers) {
    ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(buffer));
    if (size_bytes > left_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("buffer '", buffer.name,
                                                     "': the buffers have more than ",
                                                     kMaxBufferBytes, " bytes together"));
    }
    left_bytes -= size_bytes;
  }
  return absl::OkStatus();
}

}  // namespace

std::string FakeText(bool fake_all_gather, bool fake_reduce_scatter) {
  return absl::StrCat(fake_all_gather ? "fake all-gather" : "",
                      fake_all_gather && fake_reduce_scatter ? ", " : "",
                      fake_reduce_scatter ? "fake reduce-scatter" : "");
}

absl::Status ValidateHyperParameters(const HyperParameters& numbers, size_t group) {
  // Written so that a NaN is refused.
  const auto in_unit_interval = [](double x) { return x >= 0.0 && x < 1.0; };
  const auto non_negative = [](double x) { return std::isfinite(x) && x >= 0.0; };
  const char* bad = nullptr;
  if (!non_negative(numbers.learning_rate)) bad = "learning_rate";
  if (!in_unit_interval(numbers.beta1)) bad = "beta1";
  if (!in_unit_interval(numbers.beta2)) bad = "beta2";
  if (!non_negative(numbers.epsilon)) bad = "epsilon";
  if (!non_negative(numbers.weight_decay)) bad = "weight_decay";
  if (!in_unit_interval(numbers.momentum)) bad = "momentum";
  if (bad == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("param group ", group, ": ", bad, " is out of range"));
}

absl::Status ValidateJobConfig(const JobConfig& config, const ModelSpec& model) {
  RETURN_IF_ERROR(CheckRange("config: world_size", config.world_size, 1, kMaxLocalRanks));
  RETURN_IF_ERROR(CheckRange("number of units", model.units.size(), 0, kMaxUnits));
  if (!IsTrainingDType(config.compute_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config: compute_dtype ", Name(config.compute_dtype), ": fp32, bf16 or fp16"));
  }
  if (!IsTrainingDType(config.reduce_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config: reduce_dtype ", Name(config.reduce_dtype), ": fp32, bf16 or fp16"));
  }
  if (!std::isfinite(config.max_gradient_norm) || config.max_gradient_norm < 0) {
    return absl::InvalidArgumentError("config: max_gradient_norm is negative or not finite");
  }
  // Written so that a NaN is refused.
  if (!(config.gradient_norm_p > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config: gradient_norm_p ", config.gradient_norm_p, " is not above 0"));
  }
  if (config.max_gathered_units < 1 || config.gradient_slots < 0) {
    return absl::InvalidArgumentError("config: max_gathered_units < 1 or gradient_slots < 0");
  }
  if (config.shard_check_interval_steps < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config: shard_check_interval_steps ", config.shard_check_interval_steps, " is below 0"));
  }
  if (config.max_gathered_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("config: max_gathered_bytes ", config.max_gathered_bytes, " is below 0"));
  }
  // Clipping would have to know all gradients while some of them are applied already.
  if (config.optimizer_in_backward && config.max_gradient_norm > 0) {
    return absl::InvalidArgumentError(
        "config: optimizer_in_backward with max_gradient_norm: clipping needs every gradient "
        "before "
        "the first update");
  }
  if (config.collective_timeout < absl::Milliseconds(10)) {
    return absl::InvalidArgumentError("config: collective_timeout is under 10 ms");
  }
  RETURN_IF_ERROR(ValidateStrategies(config, model));
  RETURN_IF_ERROR(ValidateResharding(config, model));
  RETURN_IF_ERROR(ValidateUnits(model));
  RETURN_IF_ERROR(ValidateBuffers(model));
  return ValidateGroups(config, model);
}

int GroupOf(const JobConfig& config, const std::string& parameter_name) {
  for (size_t i = 0; i < config.groups.size(); ++i) {
    const auto& names = config.groups[i].parameter_names;
    if (std::find(names.begin(), names.end(), parameter_name) != names.end()) return i;
  }
  return 0;
}

}  // namespace tessera
