// What a query of a job's state asks for: which tensors, in which dtype. One reading of it for the
// coordinator and for a worker that is asked itself. Pure; thread-safe.
#ifndef TESSERA_JOB_LIVE_PLAN_H_
#define TESSERA_JOB_LIVE_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "job/live_tensors.h"
#include "layout/model_layout.h"
#include "proto/live_state.pb.h"

namespace tessera {

struct LivePlan {
  std::shared_ptr<const ModelLayout> layout;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::vector<int> parameters;  // Numbers in the job, rising.
  std::vector<int> buffers;     // The same, among the buffers.
  bool moments = false;
  std::vector<LiveTensor> tensors;
  std::vector<StoredDType> dtypes;                          // By tensor: what it is served in.
  std::map<std::string, std::vector<std::string>> aliases;  // By parameter with tied weights.
  std::map<std::string, int> param_groups;  // By parameter; else it is in the first.

  int64_t ElementBytesOf(size_t tensor) const { return SizeBits(dtypes[tensor]) / 8; }
  int64_t SizeBytesOf(size_t tensor) const;
  int64_t TotalBytes() const;  // Of all tensors.
  v1::LiveTensorInfo InfoOf(size_t tensor) const;
};

// `layout` is what LayOut makes of the job's model and `config`.
// Errors: InvalidArgument  the query is out of bounds, or asks for a dtype that a tensor cannot be
//                          rounded to (names it)
//         NotFound         no name matches
absl::StatusOr<LivePlan> PlanLiveRead(const JobConfig& config,
                                      std::shared_ptr<const ModelLayout> layout,
                                      const v1::LiveStateQuery& query);
// Lays it out, too. Errors: as LayOut as well.
absl::StatusOr<LivePlan> PlanLiveRead(const ModelSpec& model, const JobConfig& config,
                                      const v1::LiveStateQuery& query);

// Whether the ranks' memory has the requested values in the requested dtype, so that they can be
// mapped without rounding. Errors: FailedPrecondition names why not.
absl::Status CheckLiesAsAskedFor(const LivePlan& plan);

}  // namespace tessera

#endif  // TESSERA_JOB_LIVE_PLAN_H_
