// What the kernels' wrappers refuse. What the kernels compute is in gpu_kernels_device_test.cc.
#include "worker/device/cuda/gpu_kernels.h"

#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

TEST(GpuKernelsTest, ImpossibleArgumentsAreRefusedByNameAndNothingIsLaunched) {
  FakeCudaApi api;
  ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
  EXPECT_THAT(GpuKernels::Create(device.get(), 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("0 elements")));
  ASSERT_OK_AND_ASSIGN(auto kernels, GpuKernels::Create(device.get(), 100));
  float value = 1;
  double wide = 1;
  uint8_t code = 0;
  float* null = nullptr;
  double* null_wide = nullptr;
  host::GradientStats stats;
  const void* inputs[] = {&value};
  const std::vector<const void*> too_many(kMaxSlices + 1, &value);
  const std::pair<absl::Status, const char*> refused[] = {
      {kernels->Cast(nullptr, DType::kFp32, &value, DType::kBf16, null, 1, 1), "Cast: a pointer"},
      {kernels->Cast(nullptr, DType::kInt32, &value, DType::kFp32, &value, 1, 1),
       "Cast: it has no"},
      {kernels->CastToFp8(nullptr, DType::kInt64, &value, Fp8Format::kE4M3, &code, 1, 1),
       "CastToFp8: it has no"},
      {kernels->CastFromFp8(nullptr, Fp8Format::kE5M2, &code, DType::kFp32, null, 1, 1),
       "CastFromFp8: a pointer is null"},
      {kernels->Scale(nullptr, &value, DType::kBf16, 1, 2), "Scale: it has no such dtype"},
      {kernels->Scale(nullptr, &value, DType::kFp32, -1, 2), "Scale: -1 elements"},
      {kernels->RoundToHalf(nullptr, DType::kFp32, DType::kFp32, &value, 1), "no such dtype"},
      {kernels->RoundToHalf(nullptr, DType::kBf16, DType::kFp16, &value, 1), "no such dtype"},
      {kernels->RoundToHalf(nullptr, DType::kBf16, DType::kFp32, null, 1), "a pointer is null"},
      {kernels->AdamStep(nullptr, {}, 1, &wide, &wide, &wide, &wide, &wide, &wide, null_wide,
                         nullptr, {}),
       "AdamStep: a pointer is null"},
      {kernels->SgdStep(nullptr, {}, -1, &wide, &wide, &wide, &wide, &wide, nullptr, {}),
       "SgdStep: -1 elements"},
      {kernels->Fill(nullptr, DType::kFp32, null, 1, 42), "Fill: a pointer is null"},
      {kernels->Measure(nullptr, DType::kFp32, &value, 101, &stats), "101 elements, and 100"},
      {kernels->Measure(nullptr, DType::kFp32, &value, 1, nullptr), "Measure: a pointer is null"},
      {kernels->AddToNormPart(nullptr, DType::kFp32, &value, 101, 3, &wide), "100 are the most"},
      {kernels->AddToNormPart(nullptr, DType::kFp32, &value, 1, 0, &wide), "p is 0"},
      {kernels->AddToNormPart(nullptr, DType::kFp32, &value, 1, std::nan(""), &wide), "p is nan"},
      {kernels->AddToNormPart(nullptr, DType::kFp32, &value, 1, 3, nullptr), "a pointer is null"},
      {kernels->Reduce(nullptr, {}, DType::kFp32, 1, 1, false, &value, nullptr), "0 inputs"},
      {kernels->Reduce(nullptr, too_many, DType::kFp32, 1, 1, false, &value, nullptr),
       "257 inputs"},
      {kernels->Reduce(nullptr, inputs, DType::kFp64, 1, 1, false, &value, nullptr),
       "no such dtype"},
      {kernels->Reduce(nullptr, inputs, DType::kFp32, 101, 1, false, &value, &stats),
       "Reduce: 101 elements, and 100"},
      {kernels->Combine(nullptr, inputs, DType::kInt32, ReduceOp::kSum, 1, 1, &value),
       "no such dtype"},
      {kernels->Reduce(nullptr, inputs, Fp8Format::kE4M3, 1, 1, false, {&value, DType::kFp64},
                       nullptr),
       "Reduce: it has no such dtype"},
      {kernels->Checksum(nullptr, DType::kFp32, &value, 1, nullptr), "Checksum: a pointer is null"},
  };
  for (const auto& [status, text] : refused) {
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, HasSubstr(text)));
  }
  EXPECT_OK(kernels->Fill(nullptr, DType::kFp32, null, 0, 42)) << "nothing to do";
}

}  // namespace
}  // namespace tessera
