// DirectCommunicators over NCCL: one thread that calls the library for a device, and a communicator
// for each row of operations.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_DIRECT_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_DIRECT_H_

#include <memory>
#include <string>

#include "worker/comm/direct_communicators.h"
#include "worker/comm/nccl/nccl_api.h"

namespace tessera {

// What NCCL is told by its environment about ranks that share a GPU, which is for tests.
struct NcclSharing {
  std::string host_id;   // NCCL_HOSTID: ranks of different ones are on different hosts to it.
  bool enabled = false;  // NCCL_MULTI_RANK_GPU_ENABLE, since kNcclSharedGpu.
};
// Where a rank on the device is, to NCCL of this version: GPUs by their UUIDs; up to kNcclSharedGpu
// by their places on the bus of a host, too.
// Errors: those of the driver
absl::StatusOr<DirectPlace> FindNcclPlace(CudaApi* cuda, int device, int nccl_version,
                                          const NcclSharing& sharing);

// `nccl` and `device` outlive what is made. `call_timeout`: of each call of NCCL, an abort too.
// Errors: InvalidArgument    `device` is not a GPU
//         ResourceExhausted  no thread can be made
//         those of FindNcclPlace
absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeNcclCommunicators(
    NcclApi* nccl, RankDevice* device, absl::Duration call_timeout = absl::Seconds(30),
    const NcclSharing& sharing = {});

// With this machine's library, which is told by its environment not to block. A
// MakeDirectCommunicators. Errors: those of LoadNcclApi too.
absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeMachineNccl(RankDevice* device);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_DIRECT_H_
