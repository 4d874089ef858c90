// Which tensors of a checkpoint go into which parameters and moments of a job. Pure; thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_LOAD_CHECKPOINT_LOAD_PLAN_H_
#define TESSERA_WORKER_EXECUTOR_LOAD_CHECKPOINT_LOAD_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "job/job_config.h"
#include "layout/model_layout.h"
#include "worker/executor/load/load_plan.h"

namespace tessera {

struct CheckpointLoadPlan {
  LoadPlan model;
  // By parameter of the job: under which name in the file the optimizer's state is; empty: there is
  // none, or it is left out. In a plan without the optimizer, all are.
  std::vector<std::string> states;
  std::vector<bool> left_out;  // By parameter of the job: its state stays as it is.
};

// `optimizer`: null: only the model is wanted. `buffers`: what the trainer wants to have. With
// rules.optimizer_only neither is strict of the model. State follows its parameter: it is renamed
// and left out with it. Errors: as PlanLoad; InvalidArgument  naming the tensor: a buffer or moment
// of another shape or
//         dtype, or state of which a part is missing; if strict, also buffers that are missing, and
//         state without a parameter.
absl::StatusOr<CheckpointLoadPlan> PlanCheckpointLoad(const SafetensorsHeader& model,
                                                      const SafetensorsHeader* optimizer,
                                                      const std::vector<NamedTensorInfo>& buffers,
                                                      const ModelLayout& layout,
                                                      const JobConfig& config,
                                                      const LoadRules& rules);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_LOAD_CHECKPOINT_LOAD_PLAN_H_
