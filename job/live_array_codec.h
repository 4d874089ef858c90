// The arrays of a job's state as the wire has them. Pure; thread-safe.
#ifndef TESSERA_JOB_LIVE_ARRAY_CODEC_H_
#define TESSERA_JOB_LIVE_ARRAY_CODEC_H_

#include "absl/status/statusor.h"
#include "job/live_tensors.h"
#include "proto/live_state.pb.h"

namespace tessera {

v1::LiveStateArray EncodeLiveArray(LiveArray array);
// Errors: InvalidArgument  there is no such array.
absl::StatusOr<LiveArray> DecodeLiveArray(v1::LiveStateArray array);

}  // namespace tessera

#endif  // TESSERA_JOB_LIVE_ARRAY_CODEC_H_
