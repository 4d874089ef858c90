// DirectCommunicators over NCCL: one thread that calls the library for a device, and a communicator
// for each row of operations.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_DIRECT_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_DIRECT_H_

#include <memory>

#include "worker/comm/direct_communicators.h"
#include "worker/comm/nccl/nccl_api.h"

namespace tessera {

// `nccl` and `device` outlive what is made. `call_timeout`: of each call of NCCL, an abort too.
// Errors: InvalidArgument    `device` is no GPU
//         ResourceExhausted  no thread can be made
absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeNcclCommunicators(
    NcclApi* nccl, RankDevice* device, absl::Duration call_timeout = absl::Seconds(30));

// With this machine's library, which is told by its environment not to block. A
// MakeDirectCommunicators. Errors: those of LoadNcclApi too.
absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeMachineNccl(RankDevice* device);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_DIRECT_H_
