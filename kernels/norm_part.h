// The part of a p-norm that some elements are: sum |g|^p, or max |g| where p is infinite. In
// double, in the order of measured_sum.h. Pure; thread-safe.
#ifndef TESSERA_KERNELS_NORM_PART_H_
#define TESSERA_KERNELS_NORM_PART_H_

#include <cstdint>

namespace tessera {
namespace host {

// Adds `count` elements to a part. Requires p > 0. For p = 2 GradientStats has the sum.
void AddToNormPart(const float* gradient, int64_t count, double p, double* part);
void AddToNormPart(const double* gradient, int64_t count, double p, double* part);

}  // namespace host
}  // namespace tessera

#endif  // TESSERA_KERNELS_NORM_PART_H_
