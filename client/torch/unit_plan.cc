#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_units.h"
#include "client/torch/precision_rules.h"
#include "client/torch/torch_status.h"
#include "job/job_layout.h"
#include "job/job_memory.h"
#include "job/memory_options.h"
#include "layout/layout_dump.h"
#include "tessera/torch/units.h"

namespace tessera {
namespace {

std::string TrafficText(const UnitPlan& plan, Strategy strategy) {
  return absl::StrCat("a rank maps ", FormatBytes(plan.mapped_bytes), "; a step with ",
                      Name(strategy), " gathers ", FormatBytes(plan.traffic.gathered_bytes),
                      " of other ranks' parameters (on one host none is copied) and reduces ",
                      FormatBytes(plan.traffic.reduced_bytes), " of their gradients\n");
}

}  // namespace

absl::StatusOr<UnitPlan> PlanUnits(torch::nn::Module& root, const JobConfig& of_job,
                                   const WrapPolicy& policy, const MixedPrecision& precision) {
  // A copy, because MergePrecision changes it.
  JobConfig config = of_job;
  ASSIGN_OR_RETURN(ModuleUnits units, CatchTorch([&] {
                     return FindUnits(root, policy, {}, MergePrecision(precision, &config));
                   }));
  UnitPlan plan;
  plan.model = std::move(units.model);
  RETURN_IF_ERROR(ValidateJobConfig(config, plan.model));
  ASSIGN_OR_RETURN(plan.layout, LayOut(plan.model, config));
  const MemoryOptions options = MemoryOptionsOf(config);
  ASSIGN_OR_RETURN(plan.memory, PlanMemory(plan.layout, options));
  ASSIGN_OR_RETURN(plan.traffic,
                   PlanTraffic(plan.layout, config.compute_dtype, config.reduce_dtype));
  ASSIGN_OR_RETURN(const JobMemory mapped, JobMemory::Create(plan.layout, config));
  plan.mapped_bytes = mapped.MappedBytesOfRank(config.world_size);
  ASSIGN_OR_RETURN(const std::string memory, DumpMemory(plan.layout, options));
  plan.text = absl::StrCat(DumpUnits(plan.layout, config.compute_dtype), memory,
                           TrafficText(plan, config.strategy));
  return plan;
}

}  // namespace tessera
