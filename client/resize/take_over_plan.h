// What a rank of a job reads of the one that it takes over, and where it goes. Pure; thread-safe.
#ifndef TESSERA_CLIENT_RESIZE_TAKE_OVER_PLAN_H_
#define TESSERA_CLIENT_RESIZE_TAKE_OVER_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "job/job_config.h"
#include "job/job_memory.h"
#include "layout/model_layout.h"

namespace tessera {

// Elements of an array of an old job's parameter.
struct TakenRange {
  int old_parameter = 0;  // Its number in the old job.
  int64_t begin_elements = 0;
  int64_t numel = 0;
  int64_t slice_begin_elements = 0;  // Where they go, in the rank's slice of the unit.
};

// One array of a unit, as far as the rank has it. What no range covers is zero: padding, and
// moments of what was frozen or is.
struct TakeOverSlice {
  int unit = 0;
  StateArray array = StateArray::kParameter;
  std::vector<TakenRange> ranges;
};

// A buffer of the new job's model that the old one's has too; by number.
struct TakenBuffer {
  int buffer = 0;
  int old_buffer = 0;
  int64_t numel = 0;
};

struct TakeOverPlan {
  int num_old_parameters = 0;
  std::vector<int> old_parameters;    // By parameter of the new job: its number in the old one.
  std::vector<TakeOverSlice> slices;  // All units and arrays.
  std::vector<TakenBuffer> buffers;
  std::vector<std::string> missing_buffers;  // Of the new job, that the old one does not publish.
};

struct JobShape {
  const ModelLayout& layout;
  OptimizerKind optimizer;
};

// Parameters are the same if they share a name, their own or of tied weights.
// Errors: InvalidArgument  naming the tensor: one of the jobs lacks it, shapes or full dtypes
//         differ, or weights are tied in one job that are two parameters of the other; a buffer of
//         another shape or dtype; other optimizers
absl::StatusOr<TakeOverPlan> PlanTakeOver(const JobShape& from, const JobShape& to, Rank rank);

}  // namespace tessera

#endif  // TESSERA_CLIENT_RESIZE_TAKE_OVER_PLAN_H_
