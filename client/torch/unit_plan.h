// A dry run: which units a module tree would have, and what training them would take. No server,
// and no memory but the module's own.
//
//   auto plan = PlanUnits(*model, config, WrapBySize({/*min_numel=*/1 << 20}));
//   std::cout << plan->text;
//
//   units (ranks: 8, compute bf16)
//     unit      parameters       elements    padding         size    of a rank
//     root               3       38597376          0     73.6 MiB      9.2 MiB
//     layers.0          12        7087872          0     13.5 MiB      1.7 MiB
//   ...
//
// Pure; thread-compatible.
#ifndef TESSERA_CLIENT_TORCH_UNIT_PLAN_H_
#define TESSERA_CLIENT_TORCH_UNIT_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/torch/libtorch.h"
#include "client/torch/mixed_precision.h"
#include "client/torch/wrap_policy.h"
#include "job/job_config.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"
#include "layout/step_traffic.h"

namespace tessera {

struct UnitPlan {
  ModelSpec model;  // For `tessera layout`, or Session::Open without libtorch.
  ModelLayout layout;
  MemoryPlan memory;  // What config.strategy needs, all ranks on one host.
  // What a worker maps for one rank of the job: both versions of the shards' state, the gradient
  // slots, and the rank's part of the parameters, in whole pages.
  int64_t mapped_bytes = 0;
  StepTraffic traffic;
  std::string text;  // All of this, human-readable.
};

// Errors: as FindUnits (module_units.h); InvalidArgument  as ValidateJobConfig and PlanMemory.
absl::StatusOr<UnitPlan> PlanUnits(torch::nn::Module& root, const JobConfig& config,
                                   const WrapPolicy& policy = AlwaysWrap(),
                                   const MixedPrecision& precision = {});

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_UNIT_PLAN_H_
