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
#ifndef TESSERA_TORCH_UNIT_PLAN_H_
#define TESSERA_TORCH_UNIT_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"
#include "layout/step_traffic.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/mixed_precision.h"
#include "tessera/torch/wrap_policy.h"

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

// Errors: InvalidArgument     the root is not a Sharded<>; a module that is kept in full precision is
//                             not in a Sharded<> that holds nothing else (naming it); no parameter
//                             at all; a parameter in two units (naming both names and units); a
//                             dtype that cannot be trained; a group of which only a part is kept in
//                             full precision; what the policy names does not exist; as
//                             ValidateModel, ValidateJobConfig and PlanMemory
//         FailedPrecondition  some Sharded<> of the tree is attached already (naming it)
absl::StatusOr<UnitPlan> PlanUnits(torch::nn::Module& root, const JobConfig& config,
                                   const WrapPolicy& policy = AlwaysWrap(),
                                   const MixedPrecision& precision = {});

}  // namespace tessera

#endif  // TESSERA_TORCH_UNIT_PLAN_H_
