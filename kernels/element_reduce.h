// How the ranks' elements become one, whatever type they travel in. Uses ReduceSlices for the
// dtypes of a job; FP8 takes a plain loop.
//
// Sums run in the order of the inputs, in the output's dtype or, where that is narrower, in fp32.
// They are multiplied by `scale`, rounded to the same, and rounded to the output once, to nearest:
//
//   out = round(scale * (in[0] + in[1] + ... + in[N-1]))
//
// A value that is too large becomes infinite, and in FP8, also if it was infinite, the largest
// number (as narrow_floats.h has it). A NaN in any input makes the result NaN, whichever the
// operation. Counts are ELEMENTS. Pure functions; thread-safe over disjoint outputs.
#ifndef TESSERA_KERNELS_ELEMENT_REDUCE_H_
#define TESSERA_KERNELS_ELEMENT_REDUCE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/kernels.h"
#include "layout/element_type.h"

namespace tessera {

// Of a maximum or minimum the elements are ones of the inputs, as they were: of zeros of both signs
// the first.
enum class ReduceOp : uint8_t { kSum, kMax, kMin };

namespace host {

// As ReduceSlices, which it is for other inputs than fp8; those are summed in fp32. Requires
// `output` of kFp32, or of kFp64 if the input is not FP8.
void SumElements(absl::Span<const void* const> inputs, ElementType input, int64_t count,
                 double scale, bool accumulate, SumOutput output, GradientStats* stats);

// In the inputs' type, any of floating point. Requires at least one input; `output` may be one of
// them. `scale` is for kSum alone.
void CombineElements(absl::Span<const void* const> inputs, ElementType type, ReduceOp op,
                     double scale, int64_t count, void* output);

}  // namespace host
}  // namespace tessera

#endif  // TESSERA_KERNELS_ELEMENT_REDUCE_H_
