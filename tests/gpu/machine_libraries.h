// cuBLAS and CUPTI, where the machine has them: loaded at run time, so that a bundle needs neither.
#ifndef TESSERA_TESTS_GPU_MACHINE_LIBRARIES_H_
#define TESSERA_TESTS_GPU_MACHINE_LIBRARIES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/device/cuda/cuda_device.h"

namespace tessera {
namespace gpu_check {

// What computes.
class Gemm {
 public:
  virtual ~Gemm() = default;
  // On a thread whose context is that of the stream.
  virtual absl::Status Enqueue(CudaStreamHandle* stream) = 0;
};

// Counts the kernels that this process runs, on whatever stream.
class KernelCounter {
 public:
  virtual ~KernelCounter() = default;
  virtual absl::Status Start() = 0;
  // Since Start. What they are of is complete.
  virtual absl::StatusOr<int64_t> Stop() = 0;
};

// What cuBLAS is called, for dlopen; the first that loads is taken. One that is elsewhere, as
// that of Python's packages does (site-packages/nvidia/cublas/lib), is found where LD_LIBRARY_PATH
// has its folder.
std::vector<std::string> CublasNames();

// The product of two bf16 matrices of `size` rows and columns, of noise, added up in fp32. `device`
// outlives it. Errors: NotFound  no cuBLAS, with what the loader said of each name; Internal  it
// refuses; those of CudaDevice::Allocate
absl::StatusOr<std::unique_ptr<Gemm>> LoadCublasGemm(
    CudaDevice* device, int size, const std::vector<std::string>& names = CublasNames());

// The process's only one; never destroyed. Errors: NotFound  no CUPTI, or, of Start, it
// may not look
absl::StatusOr<KernelCounter*> LoadCuptiCounter();

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_MACHINE_LIBRARIES_H_
