// The kernels, compiled for the emulator.
#include "worker/device/cuda/kernels_elementwise.cu"
#include "worker/device/cuda/kernels_optimizer.cu"
#include "worker/device/cuda/kernels_reduce.cu"

namespace tessera {
namespace gpu {

int LoadKernels() { return 0; }

}  // namespace gpu
}  // namespace tessera
