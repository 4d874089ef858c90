// What the process of a rank sets in its environment, before it loads NCCL, where it shares its GPU
// with another rank: a way to test on a machine with one GPU, and none to run. Pure; thread-safe.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_SHARED_GPU_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_SHARED_GPU_H_

#include <string>
#include <utility>
#include <vector>

namespace tessera {

using NcclEnvironment = std::vector<std::pair<std::string, std::string>>;  // Names and values.

// `host_id`: another one for each of the ranks. `nccl_version` as NCCL numbers them.
NcclEnvironment SharedGpuEnvironment(const std::string& host_id, int nccl_version);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_SHARED_GPU_H_
