// A kernel that tests break a GPU's context with. Included by nvcc.
#ifndef TESSERA_TESTS_GPU_UNMAPPED_WRITE_H_
#define TESSERA_TESTS_GPU_UNMAPPED_WRITE_H_

#include <cstdint>

namespace tessera {
namespace gpu_check {

// Writes an int to the address. Returns CUDA's number for what the launch said.
int LaunchWriteOne(void* stream, uint64_t address);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_UNMAPPED_WRITE_H_
