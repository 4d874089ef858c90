// What a client sets in a job: which tensors, and in which order their elements arrive. Pure;
// thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_PLAN_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/types.h"
#include "job/live_tensors.h"
#include "layout/model_layout.h"
#include "proto/live_put.pb.h"

namespace tessera::coordinator {

struct PutPlan {
  struct Tensor {
    std::string name;  // As the client names it.
    LiveTensor tensor;
    DType dtype = DType::kFp32;  // Of the elements that arrive. A buffer's have its own dtype.
    int64_t element_bytes = 0;
    int64_t update_count = 0;  // Of a moment.
    int64_t numel = 0;
    int same_as = -1;  // Tied weights: the earlier tensor that sets the same parameter; -1: none.
    bool is_shared = false;  // A later tensor is the same as this one.
  };
  ModelLayout layout;
  std::vector<Tensor> tensors;  // In the order in which they arrive.
  int64_t num_tensors = 0;      // Without those that are the same as others.
  int64_t size_bytes = 0;       // Of all elements that arrive.
};

// Errors: NotFound         the job has no such parameter or buffer (names it)
//         InvalidArgument  a tensor does not fit (names it, and what is expected and given); a
//                          tensor twice; one of two moments is missing
absl::StatusOr<PutPlan> PlanPut(const JobSpec& spec, const v1::PutBegin& begin);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_PLAN_H_
