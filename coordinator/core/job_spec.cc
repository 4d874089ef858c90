#include "coordinator/core/job_spec.h"

#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "layout/layout_digest.h"
#include "layout/model_layout.h"

namespace tessera::coordinator {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("config: ", field, " ", what));
}

absl::Status CheckNumber(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Invalid(field, absl::StrCat("is ", value, "; it must be finite and not negative"));
}

absl::Status CheckHyperParameters(size_t index, const ParamGroup& group) {
  const std::string prefix = absl::StrCat("param group ", index, ": ");
  RETURN_IF_ERROR(CheckNumber(prefix + "learning_rate", group.learning_rate));
  RETURN_IF_ERROR(CheckNumber(prefix + "beta1", group.beta1));
  RETURN_IF_ERROR(CheckNumber(prefix + "beta2", group.beta2));
  RETURN_IF_ERROR(CheckNumber(prefix + "epsilon", group.epsilon));
  RETURN_IF_ERROR(CheckNumber(prefix + "weight_decay", group.weight_decay));
  return CheckNumber(prefix + "momentum", group.momentum);
}

absl::Status CheckGroups(const ModelSpec& model, const JobConfig& config) {
  absl::flat_hash_set<absl::string_view> known;
  for (const UnitSpec& unit : model.units) {
    for (const TensorSpec& parameter : unit.parameters) known.insert(parameter.name);
  }
  absl::flat_hash_map<absl::string_view, size_t> group_of;
  for (size_t i = 0; i < config.groups.size(); ++i) {
    const ParamGroup& group = config.groups[i];
    RETURN_IF_ERROR(CheckHyperParameters(i, group));
    if ((i == 0) != group.parameter_names.empty()) {
      return Invalid(absl::StrCat("param group ", i),
                     i == 0 ? "is the default one and names parameters" : "names no parameter");
    }
    for (const std::string& name : group.parameter_names) {
      if (!known.contains(name)) {
        return Invalid(absl::StrCat("param group ", i),
                       absl::StrCat("names '", name, "', which the model lacks"));
      }
      auto [it, inserted] = group_of.emplace(name, i);
      if (!inserted) {
        return Invalid(absl::StrCat("param group ", i),
                       absl::StrCat("names '", name, "', which is in group ", it->second));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(const JobConfig& config) {
  if (config.world_size < 1) {
    return Invalid("world_size", absl::StrCat("is ", config.world_size, "; it must be at least 1"));
  }
  if (!IsFloatingPoint(config.compute_dtype)) {
    return Invalid("compute_dtype", absl::StrCat("is ", Name(config.compute_dtype),
                                                 "; it must be a floating-point type"));
  }
  if (!IsFloatingPoint(config.reduce_dtype)) {
    return Invalid("reduce_dtype", absl::StrCat("is ", Name(config.reduce_dtype),
                                                "; it must be a floating-point type"));
  }
  RETURN_IF_ERROR(CheckNumber("max_gradient_norm", config.max_gradient_norm));
  RETURN_IF_ERROR(CheckNumber("max_gathered_units", config.max_gathered_units));
  RETURN_IF_ERROR(CheckNumber("gradient_slots", config.gradient_slots));
  return CheckNumber("collective_timeout_ms",
                     absl::ToDoubleMilliseconds(config.collective_timeout));
}

std::string GroupText(const ParamGroup& g) {
  return absl::StrCat("[", absl::StrJoin(g.parameter_names, ","), "] lr ", g.learning_rate,
                      " betas ", g.beta1, ",", g.beta2, " eps ", g.epsilon, " decay ",
                      g.weight_decay, " momentum ", g.momentum);
}

// Every field as (name, text), in one place, so that none is forgotten in the comparison.
std::vector<std::pair<std::string, std::string>> ConfigFields(const JobConfig& c) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"world_size", absl::StrCat(c.world_size)},
      {"strategy", absl::StrCat(static_cast<int>(c.strategy))},
      {"compute_dtype", std::string(Name(c.compute_dtype))},
      {"reduce_dtype", std::string(Name(c.reduce_dtype))},
      {"parameter_alignment_bytes", absl::StrCat(c.layout.parameter_alignment_bytes)},
      {"shard_alignment_bytes", absl::StrCat(c.layout.shard_alignment_bytes)},
      {"optimizer kind", absl::StrCat(static_cast<int>(c.optimizer))},
      {"number of param groups", absl::StrCat(c.groups.size())},
      {"max_gradient_norm", absl::StrCat(c.max_gradient_norm)},
      {"max_gathered_units", absl::StrCat(c.max_gathered_units)},
      {"gradient_slots", absl::StrCat(c.gradient_slots)},
      {"collective_timeout_ms", absl::StrCat(absl::ToInt64Milliseconds(c.collective_timeout))},
      {"backward_prefetch", c.backward_prefetch ? "true" : "false"},
  };
  for (size_t i = 0; i < c.groups.size(); ++i) {
    fields.emplace_back(absl::StrCat("param group ", i), GroupText(c.groups[i]));
  }
  return fields;
}

}  // namespace

absl::StatusOr<JobSpecPtr> MakeJobSpec(ModelSpec model, JobConfig config, int32_t submitting_rank) {
  RETURN_IF_ERROR(CheckConfig(config));
  LayoutOptions options = config.layout;
  options.alignment_dtype = config.compute_dtype;
  ASSIGN_OR_RETURN(const ModelLayout layout,
                   ModelLayout::Create(model, options, config.world_size));
  RETURN_IF_ERROR(CheckGroups(model, config));
  auto spec = std::make_shared<JobSpec>();
  spec->layout_digest = LayoutDigest(layout);
  spec->model = std::move(model);
  spec->config = std::move(config);
  spec->submitting_rank = submitting_rank;
  return JobSpecPtr(std::move(spec));
}

std::string SubmitterName(int32_t submitting_rank) {
  return submitting_rank < 0 ? "the caller" : absl::StrCat("rank ", submitting_rank);
}

absl::Status CompareJobSpecs(const JobSpec& a, const JobSpec& b) {
  const std::string name_a = a.submitting_rank < 0 ? "the job" : SubmitterName(a.submitting_rank);
  const std::string name_b = SubmitterName(b.submitting_rank);
  RETURN_IF_ERROR(CompareModels(a.model, name_a, b.model, name_b));
  const auto fields_a = ConfigFields(a.config);
  const auto fields_b = ConfigFields(b.config);
  for (size_t i = 0; i < fields_a.size() && i < fields_b.size(); ++i) {
    if (fields_a[i] == fields_b[i]) continue;
    return Invalid(fields_a[i].first, absl::StrCat("differs: ", name_a, ": ", fields_a[i].second,
                                                   ", ", name_b, ": ", fields_b[i].second));
  }
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
