#include "tests/gpu/unmapped_write.h"

namespace tessera {
namespace gpu_check {
namespace {

__global__ void WriteOne(int* to) { *to = 1; }

}  // namespace

int LaunchWriteOne(void* stream, uint64_t address) {
  WriteOne<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(reinterpret_cast<int*>(address));
  return static_cast<int>(cudaGetLastError());
}

}  // namespace gpu_check
}  // namespace tessera
