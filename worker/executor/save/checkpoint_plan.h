// Which tensors a checkpoint of a job has, and where each is stored. Pure; thread-safe.
//
//   model.safetensors, or several   NAME of each parameter, and of the trainers' buffers
//   optimizer.safetensors           state.NAME.exp_avg, .exp_avg_sq (Adam),
//                                   .momentum_buffer (SGD), .step
//
// A parameter has state once it was updated. Names are those of PyTorch's optimizers.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_PLAN_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_PLAN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/model_files.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "job/job_config.h"
#include "job/job_memory.h"
#include "job/training_progress.h"
#include "layout/model_layout.h"

namespace tessera {

// "state.W.exp_avg"; the array is a moment of that optimizer.
std::string MomentTensor(const std::string& parameter, OptimizerKind optimizer, StateArray moment);
std::string StepTensor(const std::string& parameter);
// The parameter whose moment or step the tensor is; nothing: no parameter's.
std::optional<std::string> ParameterOf(const std::string& tensor, OptimizerKind optimizer);
std::string OptimizerName(OptimizerKind optimizer);

// Calls `visit` with each parameter of the job, in order, and its number.
void ForEachParameter(
    const ModelLayout& layout,
    const std::function<void(const PlacedParameter& parameter, int job_parameter)>& visit);

// Whether the checkpoint has optimizer state of it.
inline bool HasState(const TensorSpec& spec, int64_t updates) {
  return spec.requires_grad && updates > 0;
}

struct CheckpointPlan {
  ModelFilesPlan model;
  SafetensorsHeader optimizer;
};

// `max_file_bytes`: as PlanModelFiles.
// Errors: InvalidArgument  a buffer has the name of a parameter or of another buffer, or the files'
//                          size overflows; a parameter was updated so often that PyTorch's fp32
//                          counter cannot say it.
absl::StatusOr<CheckpointPlan> PlanCheckpoint(const ModelLayout& layout, const JobConfig& config,
                                              const TrainingProgress& progress,
                                              const std::vector<NamedTensorInfo>& buffers,
                                              int64_t max_file_bytes);

// A manifest that says what was saved, and has no files yet.
Manifest ManifestFor(const std::string& job_id, const ModelLayout& layout, const JobConfig& config,
                     const TrainingProgress& progress);
// Groups as the manifest has them. Errors: InvalidArgument  a number is missing or out of range.
absl::StatusOr<std::vector<HyperParameters>> HyperParametersOf(const Manifest& manifest);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_PLAN_H_
