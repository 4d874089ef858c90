// What a client sets in a job: which tensors, in which order their elements come. Pure;
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
    std::string name;  // As the client has it.
    LiveTensor tensor;
    DType dtype = DType::kFp32;  // In which its elements come; of a buffer they are in its own.
    int64_t element_bytes = 0;
    int64_t update_count = 0;  // Of a moment.
    int64_t numel = 0;
    int same_as = -1;  // Weights that are tied: the one before it that sets the same; -1: none.
    bool is_shared = false;  // A later one is the same as this one.
  };
  ModelLayout layout;
  std::vector<Tensor> tensors;  // In the order in which they come.
  int64_t num_tensors = 0;      // But those that are the same as others.
  int64_t size_bytes = 0;       // Of all that comes.
};

// Errors: NotFound         the job has no such parameter or buffer (names it)
//         InvalidArgument  what of a tensor does not fit (names it, what is expected and given); a
//                          tensor twice; moments that are not all there
absl::StatusOr<PutPlan> PlanPut(const JobSpec& spec, const v1::PutBegin& begin);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_PLAN_H_
