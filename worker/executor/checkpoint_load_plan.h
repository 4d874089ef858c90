// Which tensors of a checkpoint go into which parameters and moments of a job. Pure; thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_CHECKPOINT_LOAD_PLAN_H_
#define TESSERA_WORKER_EXECUTOR_CHECKPOINT_LOAD_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors_header.h"
#include "job/job_config.h"
#include "layout/model_layout.h"
#include "worker/executor/load_plan.h"

namespace tessera {

struct CheckpointLoadPlan {
  LoadPlan model;
  // By parameter of the job: under which of its names the optimizer's state is; empty: there is
  // none. In a plan without the optimizer, all are.
  std::vector<std::string> states;
  // Of the trainer's buffers: which of them the file has.
  std::vector<TensorSpec> buffers;
};

// `optimizer`: null: only the model is wanted. `buffers`: what the trainer wants to have.
// Errors: as PlanLoad; InvalidArgument  naming the tensor: a buffer or moment of another shape or
//         dtype, or state of which a part is missing; `strict`: also buffers that are missing, and
//         state of no parameter.
absl::StatusOr<CheckpointLoadPlan> PlanCheckpointLoad(const SafetensorsHeader& model,
                                                      const SafetensorsHeader* optimizer,
                                                      const std::vector<TensorSpec>& buffers,
                                                      const ModelLayout& layout,
                                                      const JobConfig& config, bool strict);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_CHECKPOINT_LOAD_PLAN_H_
