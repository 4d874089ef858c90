#include "tests/gpu/unmapped_write.h"

namespace tessera {
namespace gpu_check {

int LaunchWriteOne(void*, uint64_t) { return 801; }  // CUDA_ERROR_NOT_SUPPORTED.

}  // namespace gpu_check
}  // namespace tessera
