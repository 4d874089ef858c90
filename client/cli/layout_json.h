// A layout as JSON, for programs:
//
//   {"world_size": 2, "layout_digest": "b1c2...", "units": [
//     {"name": "mlp", "dtype": "fp32", "unpadded_numel": 81, "padded_numel": 86, "shard_numel": 43,
//      "shared": [{"name": "head", "shared_with": "embed"}],
//      "ranks": [{"rank": 0, "padding_elements": 3, "parameters": [
//        {"name": "w", "in_shard": true, "offset_in_shard": 0, "numel_in_shard": 21,
//         "intra_param_start": 0, "intra_param_end": 20}]}]}],
//    "buffers": [{"name": "norm.mean", "dtype": "F32", "shape": [4], "bytes": 16}],
//    "memory": {"FULL_SHARD": {"parameter_bytes": 172, ...}, ...},
//    "cpu_worker": {"mapped_bytes_per_rank": 36864, "state_bytes_per_rank": 28672, ...},
//    "gpu_worker": {"mapped_bytes": 36864, "parameter_slots": 0, ...}}
//
// `buffers` is there where the model has any. `memory` is what the strategies need by themselves.
// `cpu_worker` is what one worker maps that has all ranks, which keeps two versions of parameters
// and optimizer state; `gpu_worker` what one maps on its GPU that has one rank of several
// (shm/parameter_plan.h). `intra_param_end` is inclusive. Where `in_shard` is false the
// four numbers are null.
#ifndef TESSERA_CLIENT_CLI_LAYOUT_JSON_H_
#define TESSERA_CLIENT_CLI_LAYOUT_JSON_H_

#include <ostream>

#include "absl/status/status.h"
#include "job/job_memory.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"
#include "shm/parameter_plan.h"

namespace tessera::cli {

struct WorkerMemory {
  JobMemory mapped;
  ParameterPlan on_gpu;  // Of a rank that is alone on a GPU.

  int64_t GpuBytes() const {
    return mapped.state_region_bytes() + mapped.device_gradient_region_bytes() +
           on_gpu.total_bytes();
  }
};

// Writes rank by rank, so that large models and worlds need no memory for the whole text.
// Errors: InvalidArgument  as PlanMemory; nothing is written then.
absl::Status WriteLayoutJson(const ModelLayout& layout, const MemoryOptions& memory,
                             const WorkerMemory& workers, std::ostream* out);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_LAYOUT_JSON_H_
