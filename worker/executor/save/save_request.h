// What a trainer asks to save, as its rank takes it. It is untrusted.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_SAVE_REQUEST_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_SAVE_REQUEST_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"

namespace tessera {

// Errors: AlreadyExists    the trainer found a checkpoint that must not be replaced
//   InvalidArgument  what else the trainer found wrong; no path of a file or folder; a limit below
//   0; a dtype that is not a smaller floating-point one, or one for a checkpoint, which is always
//   in full precision; parts in files of a size, keeping the newest, or of a model.
absl::Status CheckSaveRequest(const v1::SaveRequest& request);

// Whether all ranks ask for the same. Collective. Errors: as CompareRequestParts (request_sums.h).
absl::Status CompareRequests(const v1::SaveRequest& request, Communicator* communicator);

// The same for requests of which CompareRequests says so, and hardly for others; never 0.
uint64_t IdOf(const v1::SaveRequest& request);

// Name, dtype and shape. Errors: InvalidArgument  a dtype that files do not have, naming the
// tensor.
absl::StatusOr<NamedTensorInfo> InfoOf(const v1::NamedTensor& tensor);
absl::StatusOr<std::vector<NamedTensorInfo>> InfosOf(
    const google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors);

// Rank 0's buffers without their values, on all ranks; InfosOf checks them. Collective.
// Errors: the communicator's.
absl::StatusOr<google::protobuf::RepeatedPtrField<v1::NamedTensor>> ShareBuffers(
    const v1::SaveRequest& request, Communicator* communicator);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_SAVE_REQUEST_H_
