// Which tensors a reader of a job's state asked for, and which part of each a rank has: one order
// for the coordinator and all workers, so that what they send each other needs no index.
//
//   for each tensor            "w", "state.w.exp_avg", "b", ..., then buffers: "norm.mean", ...
//     for each rank from 0     its slice of the tensor, if it has any; of a buffer rank 0 all of it
//
// Of each tensor it may be a part that is asked for (docs/adr/0049): one range of its elements, be
// it rows or what a rank's shard has. Of a LOCAL form the parts of a unit's parameters make one
// tensor, so there is the order another one: for each unit, for each array, for each parameter.
//
// Ranks that hold copies of others' slices are left out. Pure; thread-safe.
#ifndef TESSERA_JOB_LIVE_TENSORS_H_
#define TESSERA_JOB_LIVE_TENSORS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/model_layout.h"
#include "layout/shard_map.h"

namespace tessera {

// An array of a rank's state. Its number is that of StateArray (job_memory.h); a buffer is in
// none.
enum class LiveArray { kParameter, kFirstMoment, kSecondMoment, kBuffer };

// What is asked for of each tensor; as LiveStateForm of proto/live_state.proto.
enum class LiveForm { kFull, kSharded, kLocal };
struct LivePartOf {
  LiveForm form = LiveForm::kFull;
  int rank = 0;  // Whose part, unless the form is kFull.
};

struct LiveTensor {
  int unit = 0;           // This and `parameter` mean nothing of a buffer.
  int parameter = 0;      // Of the unit's FlatLayout.
  int job_parameter = 0;  // Its number in the whole job; of a buffer, among the buffers.
  LiveArray array = LiveArray::kParameter;
  // The part that is asked for, as elements of the tensor; all of it where none is said.
  ElementRange part = {0, std::numeric_limits<int64_t>::max()};
  // Where the part begins in the sent data: of kLocal, after the unit's earlier parameters.
  int64_t sent_begin_elements = 0;
};

// Of a tensor, that a rank has.
struct LiveSlice {
  int tensor = 0;  // Its index.
  int rank = 0;
  int64_t begin_elements = 0;        // In the tensor.
  int64_t shard_begin_elements = 0;  // In the rank's slice of the unit; of a buffer in the buffer.
  int64_t numel = 0;
  int64_t sent_begin_elements = 0;  // In what is sent.
};

// Those of the parameters with these numbers; with `moments`, each one's moments follow it, unless
// it is frozen: but of kLocal a unit's moments have its frozen parameters' elements too, which are
// zeroes. Then the buffers with those numbers, whole whatever the form.
// Errors: InvalidArgument  the numbers are not those of parameters, or buffers, of the job, in
//                          ascending order.
absl::StatusOr<std::vector<LiveTensor>> LiveTensors(
    const ModelLayout& layout, OptimizerKind optimizer, const std::vector<int>& job_parameters,
    bool moments, const std::vector<int>& buffers = {}, const LivePartOf& part = {});

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
