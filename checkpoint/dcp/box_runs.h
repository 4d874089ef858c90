// Which elements of a row-major tensor are in a box of it, as runs that are in order both in the
// tensor and in the box. Pure; thread-safe. Elements; ranges half-open.
//
//   tensor [3, 4], box at [0, 1] of [3, 2]        0 [1  2] 3
//   runs of 2: tensor 1, 5, 9; box 0, 2, 4        4 [5  6] 7
//                                                 8 [9 10] 11
#ifndef TESSERA_CHECKPOINT_DCP_BOX_RUNS_H_
#define TESSERA_CHECKPOINT_DCP_BOX_RUNS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tessera::dcp {

struct BoxRun {
  int64_t tensor_begin_elements = 0, box_begin_elements = 0, numel = 0;
};

// Calls `each`, in order, for each run of the tensor's [begin_elements, end_elements) within the
// box, and stops at the first error that it returns. The box is within the tensor, and is not
// empty.
absl::Status ForEachRun(const std::vector<int64_t>& shape, const std::vector<int64_t>& offsets,
                        const std::vector<int64_t>& sizes, int64_t begin_elements,
                        int64_t end_elements, absl::FunctionRef<absl::Status(const BoxRun&)> each);

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_BOX_RUNS_H_
