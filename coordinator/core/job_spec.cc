#include "coordinator/core/job_spec.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "job/job_layout.h"
#include "job/job_memory.h"
#include "layout/layout_digest.h"
#include "layout/model_layout.h"

namespace tessera::coordinator {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("config: ", field, " ", what));
}

std::string GroupText(const ParamGroup& g) {
  return absl::StrCat("[", absl::StrJoin(g.parameter_names, ","), "] lr ", g.learning_rate,
                      " betas ", g.beta1, ",", g.beta2, " eps ", g.epsilon, " decay ",
                      g.weight_decay, " momentum ", g.momentum);
}

// Every field as (name, text), in one place, so that none is forgotten in the comparison. But for
// collective_timeout, which changes nothing that is computed: the job keeps the one it was made with.
std::vector<std::pair<std::string, std::string>> ConfigFields(const JobConfig& c) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"world_size", absl::StrCat(c.world_size)},
      {"strategy", std::string(Name(c.strategy))},
      {"shard_group_size", absl::StrCat(c.shard_group_size)},
      {"reshard_group_size", absl::StrCat(c.reshard_group_size)},
      {"compute_dtype", std::string(Name(c.compute_dtype))},
      {"reduce_dtype", std::string(Name(c.reduce_dtype))},
      {"keep_low_precision_gradients", c.keep_low_precision_gradients ? "true" : "false"},
      {"parameter_alignment_bytes", absl::StrCat(c.layout.parameter_alignment_bytes)},
      {"shard_alignment_bytes", absl::StrCat(c.layout.shard_alignment_bytes)},
      {"optimizer kind", absl::StrCat(static_cast<int>(c.optimizer))},
      {"number of param groups", absl::StrCat(c.groups.size())},
      {"max_gradient_norm", absl::StrCat(c.max_gradient_norm)},
      {"gradient_norm_p", absl::StrCat(c.gradient_norm_p)},
      {"max_gathered_units", absl::StrCat(c.max_gathered_units)},
      {"max_gathered_bytes", absl::StrCat(c.max_gathered_bytes)},
      {"shard_check_interval_steps", absl::StrCat(c.shard_check_interval_steps)},
      {"gradient_slots", absl::StrCat(c.gradient_slots)},
      {"backward_prefetch", absl::StrCat(static_cast<int>(c.backward_prefetch))},
      {"fake_all_gather", c.fake_all_gather ? "true" : "false"},
      {"fake_reduce_scatter", c.fake_reduce_scatter ? "true" : "false"},
      {"optimizer_in_backward", c.optimizer_in_backward ? "true" : "false"},
      {"cpu_offload", c.cpu_offload ? "true" : "false"},
      {"forward_prefetch", c.forward_prefetch ? "true" : "false"},
  };
  for (size_t i = 0; i < c.groups.size(); ++i) {
    fields.emplace_back(absl::StrCat("param group ", i), GroupText(c.groups[i]));
  }
  return fields;
}

absl::StatusOr<ModelLayout> CheckAndLayOut(const JobSpec& spec) {
  RETURN_IF_ERROR(ValidateModel(spec.model));
  RETURN_IF_ERROR(ValidateJobConfig(spec.config, spec.model));
  return LayOut(spec.model, spec.config);
}

absl::Status SetMemoryNeedsOf(const ModelLayout& layout, JobSpec* spec) {
  ASSIGN_OR_RETURN(const JobMemory memory, JobMemory::Create(layout, spec->config));
  // Which of the two counts depends on the worker that gets the ranks, so both are kept.
  spec->cpu_host_memory = memory.host_memory(/*parameters_on_host=*/true, /*state_on_host=*/true);
  spec->gpu_host_memory =
      memory.host_memory(/*parameters_on_host=*/false, spec->config.cpu_offload);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobSpecPtr> MakeJobSpec(ModelSpec model, JobConfig config, int32_t submitting_rank) {
  auto spec = std::make_shared<JobSpec>();
  spec->model = std::move(model);
  spec->config = std::move(config);
  spec->submitting_rank = submitting_rank;
  ASSIGN_OR_RETURN(const ModelLayout layout, CheckAndLayOut(*spec));
  RETURN_IF_ERROR(SetMemoryNeedsOf(layout, spec.get()));
  spec->layout_digest = LayoutDigest(layout);
  return JobSpecPtr(std::move(spec));
}

absl::Status SetMemoryNeeds(JobSpec* spec) {
  ASSIGN_OR_RETURN(const ModelLayout layout, CheckAndLayOut(*spec));
  return SetMemoryNeedsOf(layout, spec);
}

int64_t SizeBytes(const JobSpec& spec) {
  size_t bytes = sizeof(spec);
  const auto add_tensor = [&bytes](const auto& tensor) {
    bytes += sizeof(tensor) + tensor.name.size() + tensor.shape.size() * sizeof(int64_t);
  };
  for (const UnitSpec& unit : spec.model.units) {
    bytes += sizeof(unit) + unit.name.size();
    for (const TensorSpec& parameter : unit.parameters) {
      add_tensor(parameter);
      bytes += parameter.shared_with.size();
    }
  }
  for (const BufferSpec& buffer : spec.model.buffers) add_tensor(buffer);
  for (const ParamGroup& group : spec.config.groups) {
    bytes += sizeof(group);
    for (const std::string& name : group.parameter_names) bytes += sizeof(name) + name.size();
  }
  return static_cast<int64_t>(bytes);
}

bool EachWorkerHasAll(const JobSpec& spec, const std::vector<RankPlacement>& placements) {
  const JobConfig& config = spec.config;
  const auto group_size = static_cast<size_t>(config.shard_group_size);
  if (group_size == 0 || group_size >= placements.size()) return false;
  std::set<WorkerId> workers;
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    const size_t first = rank - rank % group_size;
    // Groups that share a worker are lost together, so none of them replaces the other.
    if (rank == first && !workers.insert(placements[rank].worker).second) return false;
    if (!(placements[rank].worker == placements[first].worker)) return false;
  }
  // A unit that is not hybrid has shards that only one worker holds.
  return std::all_of(spec.model.units.begin(), spec.model.units.end(), [&](const UnitSpec& unit) {
    return IsHybrid(unit.strategy.value_or(config.strategy));
  });
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
  // The number of groups is a field too, so lists of different lengths differ before the end.
  for (size_t i = 0; i < fields_a.size() && i < fields_b.size(); ++i) {
    if (fields_a[i] == fields_b[i]) continue;
    // Both may come from the same rank, if a later trainer has other settings.
    const std::string maker =
        a.submitting_rank < 0 ? ""
                              : absl::StrCat(" (made by ", SubmitterName(a.submitting_rank), ")");
    const std::string caller =
        b.submitting_rank < 0 ? "the caller" : absl::StrCat("this trainer (", name_b, ")");
    return Invalid(fields_a[i].first,
                   absl::StrCat("differs: the job", maker, " has ", fields_a[i].second, ", ",
                                caller, " ", fields_b[i].second));
  }
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
