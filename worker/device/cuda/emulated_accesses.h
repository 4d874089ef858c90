// What the emulator of kernels counts: for tests of how they access memory.
#ifndef TESSERA_WORKER_DEVICE_CUDA_EMULATED_ACCESSES_H_
#define TESSERA_WORKER_DEVICE_CUDA_EMULATED_ACCESSES_H_

#include <cstdint>

namespace tessera {
namespace gpu {

// Of 16 bytes, by all launches so far. Thread-safe.
int64_t WideAccesses();

}  // namespace gpu
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_EMULATED_ACCESSES_H_
