// The launches of a build without nvcc.
#include "worker/device/cuda/kernel_launch.h"

namespace tessera {
namespace gpu {

int LaunchCast(void*, int, const void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchScale(void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchFill(void*, int, void*, int64_t, double) { return kNotBuilt; }
int LaunchReduce(void*, const Inputs&, int, int64_t, double, bool, int, void*) { return kNotBuilt; }
int LaunchCombine(void*, const Inputs&, int, int, int64_t, void*) { return kNotBuilt; }
int LaunchMeasure(void*, int, const void*, int64_t, double*, Stats*) { return kNotBuilt; }
int LaunchAdam(void*, const AdamFactors<float>&, int64_t, const float*, const float*, const float*,
               const float*, float*, float*, float*, const Published&) {
  return kNotBuilt;
}
int LaunchSgd(void*, const SgdFactors<float>&, int64_t, const float*, const float*, const float*,
              float*, float*, const Published&) {
  return kNotBuilt;
}
int LaunchChecksum(void*, const void*, int, int64_t, uint64_t*) { return kNotBuilt; }

}  // namespace gpu
}  // namespace tessera
