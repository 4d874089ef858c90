// The kernels that the benchmark measures, as GpuKernels has them.
#ifndef TESSERA_TESTS_GPU_DEVICE_KERNELS_H_
#define TESSERA_TESTS_GPU_DEVICE_KERNELS_H_

#include "tests/gpu/gpu_bench.h"
#include "worker/device/cuda/gpu_kernels.h"

namespace tessera {
namespace gpu_check {

class DeviceKernels : public MeasuredKernels {
 public:
  explicit DeviceKernels(GpuKernels* kernels) : kernels_(kernels) {}
  absl::Status Adam(CudaStreamHandle* stream, int64_t count, const float* gradient, float* p,
                    float* m, float* v, uint16_t* published) override {
    host::AdamParams params;
    params.weight_decay = 0.1;
    params.decoupled_weight_decay = true;
    return kernels_->AdamStep(stream, params, count, gradient, p, m, v, p, m, v, nullptr,
                              {published, DType::kBf16});
  }
  absl::Status Cast(CudaStreamHandle* stream, DType from_dtype, const void* from, DType to_dtype,
                    void* to, int64_t count, double scale) override {
    return kernels_->Cast(stream, from_dtype, from, to_dtype, to, count, scale);
  }
  absl::Status Measure(CudaStreamHandle* stream, const float* values, int64_t count,
                       host::GradientStats* stats) override {
    return kernels_->Measure(stream, DType::kFp32, values, count, stats);
  }
  absl::Status Sum(CudaStreamHandle* stream, absl::Span<const void* const> ranks, int64_t count,
                   float* sum, host::GradientStats* stats) override {
    return kernels_->Reduce(stream, ranks, DType::kFp32, count, 1.0 / kSummedRanks,
                            /*accumulate=*/false, {sum, DType::kFp32}, stats);
  }
  absl::Status Touch(CudaStreamHandle* stream, float* value) override {
    return kernels_->Fill(stream, DType::kFp32, value, 1, 0);
  }

 private:
  GpuKernels* const kernels_;
};

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_DEVICE_KERNELS_H_
