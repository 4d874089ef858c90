// Which tensors a reader of a job's state asked for, and which slice of each a rank has: one order
// for the coordinator and all workers, so that what they send each other needs no index.
//
//   for each tensor            "w", "state.w.exp_avg", "b", ..., then buffers: "norm.mean", ...
//     for each rank from 0     its slice of the tensor, if it has any; of a buffer rank 0 all of it
//
// Ranks that hold copies of others' slices are left out. Pure; thread-safe.
#ifndef TESSERA_JOB_LIVE_TENSORS_H_
#define TESSERA_JOB_LIVE_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/model_layout.h"

namespace tessera {

// An array of a rank's state. Its number is that of StateArray (job_memory.h); a buffer is in
// none.
enum class LiveArray { kParameter, kFirstMoment, kSecondMoment, kBuffer };

struct LiveTensor {
  int unit = 0;           // This and `parameter` mean nothing of a buffer.
  int parameter = 0;      // Of the unit's FlatLayout.
  int job_parameter = 0;  // Its number in the whole job; of a buffer, among the buffers.
  LiveArray array = LiveArray::kParameter;
};

// Of a tensor, that a rank has.
struct LiveSlice {
  int tensor = 0;  // Its index.
  int rank = 0;
  int64_t begin_elements = 0;        // In the tensor.
  int64_t shard_begin_elements = 0;  // In the rank's slice of the unit; of a buffer in the buffer.
  int64_t numel = 0;
};

// Those of the parameters with these numbers; with `moments`, each one's moments follow it, unless
// it is frozen. Then the buffers with those numbers.
// Errors: InvalidArgument  the numbers are not those of parameters, or buffers, of the job, in
//                          ascending order.
absl::StatusOr<std::vector<LiveTensor>> LiveTensors(const ModelLayout& layout,
                                                    OptimizerKind optimizer,
                                                    const std::vector<int>& job_parameters,
                                                    bool moments,
                                                    const std::vector<int>& buffers = {});

// Requires a tensor that is not a buffer.
const PlacedParameter& ParameterOf(const ModelLayout& layout, const LiveTensor& tensor);
// Requires one that is.
const BufferSpec& BufferOf(const ModelLayout& layout, const LiveTensor& tensor);
const std::vector<int64_t>& ShapeOf(const ModelLayout& layout, const LiveTensor& tensor);

// What it is called: a moment as in the optimizer's file of a checkpoint.
std::string LiveTensorName(const ModelLayout& layout, OptimizerKind optimizer,
                           const LiveTensor& tensor);
// "state.W.exp_avg", "state.W.exp_avg_sq", or "state.W.momentum_buffer" of SGD.
std::string MomentTensorName(const std::string& parameter, OptimizerKind optimizer,
                             LiveArray moment);

// Calls `visit` with each slice that ranks [first_rank, end_rank) have, in order, until it returns
// an error, which is returned.
absl::Status ForEachLiveSlice(const ModelLayout& layout, const std::vector<LiveTensor>& tensors,
                              int first_rank, int end_rank,
                              absl::FunctionRef<absl::Status(const LiveSlice&)> visit);

}  // namespace tessera

#endif  // TESSERA_JOB_LIVE_TENSORS_H_
