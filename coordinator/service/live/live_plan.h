// What a query of a job's state asks for: which tensors, in which dtype. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PLAN_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PLAN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/types.h"
#include "job/live_tensors.h"
#include "layout/model_layout.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

struct LivePlan {
  ModelLayout layout;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::vector<int> parameters;  // Numbers in the job, rising.
  std::vector<LiveTensor> tensors;
  std::vector<DType> dtypes;                                // By tensor: what it is served in.
  std::map<std::string, std::vector<std::string>> aliases;  // By parameter with tied weights.

  int64_t SizeBytesOf(size_t tensor) const {
    return ParameterOf(layout, tensors[tensor]).numel * SizeBytes(dtypes[tensor]);
  }
  v1::LiveTensorInfo InfoOf(size_t tensor) const;
};

// Errors: InvalidArgument  the query is out of bounds, or asks for a dtype that a tensor cannot be
//                          rounded to (names it)
//         NotFound         no parameter's name matches
absl::StatusOr<LivePlan> PlanLiveRead(const JobSpec& spec, const v1::LiveStateQuery& query);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PLAN_H_
