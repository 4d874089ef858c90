// How many products of matrices compute about as long as something else takes, and how they are
// dealt out to a model's passes. Found by trying: what one takes among others is not what it takes
// by itself, and a clock may see nothing of a single one.
#ifndef TESSERA_TESTS_GPU_PRODUCT_COUNT_H_
#define TESSERA_TESTS_GPU_PRODUCT_COUNT_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"

namespace tessera {
namespace gpu_check {

inline constexpr int kMostCountTries = 12;
inline constexpr int64_t kMostProducts = int64_t{1} << 16;

// Seconds of so many products together.
using MeasureProducts = std::function<absl::StatusOr<double>(int64_t count)>;

// A count that takes `seconds`, give or take a quarter; where none of the tries did, the nearest,
// if it is within a factor of two; or one product, if that takes longer by itself. Errors:
// InvalidArgument     `seconds` is not a time
//         FailedPrecondition  no count did; the text has what each that was tried took
//         those of `measure`
absl::StatusOr<int64_t> CountThatTakes(double seconds, const MeasureProducts& measure);

// Of `count` products how many come in pass `pass` of `num_passes`, which differ by one at most.
// Pure.
int64_t ProductsOfPass(int64_t count, int pass, int num_passes);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_PRODUCT_COUNT_H_
