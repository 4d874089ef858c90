// What the tests of kernels share: a device, and arrays on it. Over the machine's device, or, with
// TESSERA_KERNELS_ON_HOST, over a fake one.
#ifndef TESSERA_WORKER_DEVICE_CUDA_GPU_KERNELS_FIXTURE_H_
#define TESSERA_WORKER_DEVICE_CUDA_GPU_KERNELS_FIXTURE_H_

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/cuda/gpu_kernels.h"

namespace tessera {

// More than a grid takes at once, so that each thread takes several.
constexpr int64_t kLargeCount = 2 * 4096 * 256 + 777;

inline absl::StatusOr<CudaApi*> LoadApi() {
#ifdef TESSERA_KERNELS_ON_HOST
  static auto* const api = new FakeCudaApi();
  return api;
#else
  return LoadCudaApi();
#endif
}

class GpuKernelsFixture : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<CudaApi*> api = LoadApi();
    if (!api.ok()) GTEST_SKIP() << api.status();
    absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(*api, {});
    if (absl::IsNotFound(device.status())) GTEST_SKIP() << device.status();
    ASSERT_OK(device);
    device_ = *std::move(device);
    ASSERT_OK_AND_ASSIGN(kernels_, GpuKernels::Create(device_.get(), kLargeCount));
    ASSERT_OK_AND_ASSIGN(stream_, CudaStream::Create(device_->context(), "test", 0));
  }
  template <typename T>
  Buffer Upload(const std::vector<T>& values) {
    absl::StatusOr<Buffer> buffer = device_->Allocate(values.size() * sizeof(T));
    EXPECT_OK(buffer);
    device_->Copy(stream_.get(), buffer->data(), values.data(), values.size() * sizeof(T));
    stream_->Synchronize();
    return *std::move(buffer);
  }
  template <typename T>
  std::vector<T> Download(const Buffer& buffer) {
    std::vector<T> values(buffer.size_bytes() / sizeof(T));
    device_->Copy(stream_.get(), values.data(), buffer.data(), buffer.size_bytes());
    stream_->Synchronize();
    EXPECT_OK(device_->status());
    return values;
  }
  static std::vector<float> Values(int seed, int64_t count = 10007) {
    std::vector<float> values(count);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(i * (seed + 3))) * (i % 5 == 0 ? 1e-3f : 20.0f);
    }
    return values;
  }
  // In fp64 with bits that fp32 has no room for.
  template <typename Real>
  static std::vector<Real> ValuesOf(int seed) {
    const std::vector<float> floats = Values(seed);
    std::vector<Real> values(floats.begin(), floats.end());
    for (Real& value : values) value = value * static_cast<Real>(1.1);
    return values;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<GpuKernels> kernels_;
  std::unique_ptr<CudaStream> stream_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_GPU_KERNELS_FIXTURE_H_
