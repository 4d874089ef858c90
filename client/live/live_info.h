// What the coordinator says of a tensor of a job's live state. Pure; thread-safe.
#ifndef TESSERA_CLIENT_LIVE_LIVE_INFO_H_
#define TESSERA_CLIENT_LIVE_LIVE_INFO_H_

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "layout/stored_dtype.h"
#include "proto/live_state.pb.h"

namespace tessera {

// Errors of both: InvalidArgument  a dtype that this build does not know.
absl::StatusOr<StoredDType> StoredDTypeOf(const v1::LiveTensorInfo& info);
absl::StatusOr<NamedTensorInfo> TensorInfoOf(const v1::LiveTensorInfo& info);

inline bool IsMoment(const v1::LiveTensorInfo& info) {
  return info.array() == v1::LIVE_STATE_ARRAY_FIRST_MOMENT ||
         info.array() == v1::LIVE_STATE_ARRAY_SECOND_MOMENT;
}

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_LIVE_INFO_H_
