// cuBLAS and CUPTI, where the machine has them: loaded at run time, so that a bundle needs neither.
#ifndef TESSERA_TESTS_GPU_MACHINE_LIBRARIES_H_
#define TESSERA_TESTS_GPU_MACHINE_LIBRARIES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tests/gpu/overlap_bench.h"
#include "worker/device/cuda/cuda_device.h"

namespace tessera {
namespace gpu_check {

// The product of two bf16 matrices of `size` rows and columns, added up in fp32. `device` outlives
// it. Errors: NotFound  there is no cuBLAS; Internal  it refuses; those of CudaDevice::Allocate
absl::StatusOr<std::unique_ptr<Gemm>> LoadCublasGemm(CudaDevice* device, int size);

// The process's only one; never destroyed. Errors: NotFound  there is no CUPTI, or, of Start, it
// may not look
absl::StatusOr<KernelCounter*> LoadCuptiCounter();

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_MACHINE_LIBRARIES_H_
