// Which tensors of a job's state somebody sets, and which part of each the ranks of a worker hold:
// one order for the coordinator, which cuts what comes, and the worker, which stores its part.
//
//   for each tensor                     in the order in which they come
//     for each range, rising            that any rank of the worker holds; once, however many do:
//                                       of a buffer all of it
//
// Pure; thread-safe.
#ifndef TESSERA_JOB_HELD_RANGES_H_
#define TESSERA_JOB_HELD_RANGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "job/live_tensors.h"
#include "layout/dtype.h"
#include "layout/model_layout.h"

namespace tessera {

// Where each parameter of the job is, by its number.
class ParameterNumbers {
 public:
  explicit ParameterNumbers(const ModelLayout& layout);

  int size() const { return static_cast<int>(places_.size()); }
  // Errors: InvalidArgument  no such parameter, or it has no such array: a frozen one has no
  //                          moments, and one of SGD no second; names it.
  absl::StatusOr<LiveTensor> TensorOf(int64_t job_parameter, LiveArray array,
                                      OptimizerKind optimizer) const;

 private:
  struct Place {
    int unit = 0, parameter = 0;
    bool has_moments = false;
    std::string name;
  };
  std::vector<Place> places_;
};

// What elements that somebody sets may come in.
inline bool IsPutDType(DType dtype) {
  return dtype == DType::kFp32 || dtype == DType::kFp64 || IsHalf(dtype);
}

struct HeldRange {
  int tensor = 0;              // Its index.
  int64_t begin_elements = 0;  // In the tensor.
  int64_t numel = 0;           // Never 0.
};

// Calls `visit` with each range that ranks [first_rank, end_rank) hold, replicas too, in order,
// until it returns an error, which is returned.
absl::Status ForEachHeldRange(const ModelLayout& layout, const std::vector<LiveTensor>& tensors,
                              int first_rank, int end_rank,
                              absl::FunctionRef<absl::Status(const HeldRange&)> visit);

}  // namespace tessera

#endif  // TESSERA_JOB_HELD_RANGES_H_
