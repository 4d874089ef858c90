// The launches of a build without nvcc.
#include "worker/device/cuda/kernel_launch.h"

namespace tessera {
namespace gpu {

int LoadKernels() { return 0; }  // There is none.
int LaunchCast(void*, int, const void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchCastToFp8(void*, int, const void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchCastFromFp8(void*, int, const void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchScale(void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchRoundToHalf(void*, int, int, void*, int64_t) { return kNotBuilt; }
int LaunchFill(void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchReduce(void*, const Inputs&, int, int64_t, double, bool, int, void*, const Measuring&) {
  return kNotBuilt;
}
int LaunchCombine(void*, const Inputs&, int, int, double, int64_t, void*) { return kNotBuilt; }
int LaunchMeasure(void*, int, const void*, int64_t, double, double*, double*, bool*) {
  return kNotBuilt;
}
template <typename Real>
int LaunchAdam(void*, const AdamFactors<Real>&, int64_t, const Real*, const AdamArrays<Real>&) {
  return kNotBuilt;
}
template <typename Real>
int LaunchSgd(void*, const SgdFactors<Real>&, int64_t, const Real*, const Real*, const Real*, Real*,
              Real*, const Published&) {
  return kNotBuilt;
}
int LaunchChecksum(void*, const void*, int, int64_t, uint64_t*) { return kNotBuilt; }

template int LaunchAdam(void*, const AdamFactors<float>&, int64_t, const float*,
                        const AdamArrays<float>&);
template int LaunchAdam(void*, const AdamFactors<double>&, int64_t, const double*,
                        const AdamArrays<double>&);
template int LaunchSgd(void*, const SgdFactors<float>&, int64_t, const float*, const float*,
                       const float*, float*, float*, const Published&);
template int LaunchSgd(void*, const SgdFactors<double>&, int64_t, const double*, const double*,
                       const double*, double*, double*, const Published&);

}  // namespace gpu
}  // namespace tessera
