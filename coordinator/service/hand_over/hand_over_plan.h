// Which rank of a handed-over job has which part of what a taker's rank reads. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_PLAN_H_
#define TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/model_layout.h"
#include "proto/hand_over.pb.h"

namespace tessera::coordinator {

struct HandOverPart {
  v1::LiveRange range;  // Names the rank that has all of it.
  int64_t element_bytes = 0;
};

// In the order of the ranges, and within a range in the order of its elements. If several ranks
// hold the same elements, the first one is used.
// Errors: InvalidArgument  a range of a parameter or array that the job lacks, or outside of it
//                          (names it); too many ranges
absl::StatusOr<std::vector<HandOverPart>> PlanHandOverRead(const ModelLayout& layout,
                                                           OptimizerKind optimizer,
                                                           const v1::ReadHandOverRequest& request);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_PLAN_H_
