// How cuBLAS is found and called, over the fake driver and a fake library.
#include "tests/gpu/machine_libraries.h"

#include <dlfcn.h>

#include <memory>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr char kSample[] = "tests/gpu/libsample_cublas.so";

class CublasTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(device_, CudaDevice::Create(&api_, {})); }

  FakeCudaApi api_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(CublasTest, FirstOfItsNamesThatLoadsIsCalledAndWhatItSaysIsAnError) {
  const std::string held = api_.Held();
  {
    ASSERT_OK_AND_ASSIGN(const auto gemm,
                         LoadCublasGemm(device_.get(), 64, {"libnone-such.so.1", kSample}));
    ASSERT_OK_AND_ASSIGN(const auto stream, CudaStream::Create(device_->context(), "test", 0));
    ASSERT_OK_AND_ASSIGN(const auto other, LoadCublasGemm(device_.get(), 32, {kSample}));
    // The library counts each one's by itself, and looks at what it is given.
    EXPECT_OK(gemm->Enqueue(stream->handle()));
    EXPECT_OK(other->Enqueue(stream->handle()));
    EXPECT_OK(gemm->Enqueue(stream->handle()));
    EXPECT_THAT(gemm->Enqueue(stream->handle()),
                StatusIs(StatusCode::kInternal, HasSubstr("cublasGemmEx said 13")));
    EXPECT_THAT(gemm->Enqueue(nullptr),
                StatusIs(StatusCode::kInternal, HasSubstr("cublasSetStream said 7")));
  }
  EXPECT_EQ(api_.Held(), held) << "the matrices are given back";
}

TEST_F(CublasTest, WhatIsNotThereIsNotFoundAndALibraryThatIsAnotherTooByTheFunctionThatItLacks) {
  EXPECT_THAT(LoadCublasGemm(device_.get(), 64, {"libnone-such.so.1", "libother-such.so"}),
              StatusIs(StatusCode::kNotFound,
                       testing::AllOf(HasSubstr("no cuBLAS"), HasSubstr("libnone-such.so.1: "),
                                      HasSubstr("libother-such.so: "))));
  EXPECT_THAT(LoadCublasGemm(device_.get(), 64, {"libm.so.6"}),
              StatusIs(StatusCode::kNotFound, HasSubstr("has no cublasCreate_v2")));
}

TEST_F(CublasTest, LibraryThatMakesNoHandleAndWantOfMemoryAreErrorsAndNothingIsHeld) {
  const std::string held = api_.Held();
  {
    api_.FailCall("MemAlloc", kCudaOutOfMemory, /*skip=*/2);
    EXPECT_THAT(LoadCublasGemm(device_.get(), 64, {kSample}),
                StatusIs(StatusCode::kResourceExhausted, HasSubstr("OUT_OF_MEMORY")));
  }
  void* const sample = dlopen(kSample, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(sample, nullptr) << dlerror();
  const auto refuse = reinterpret_cast<void (*)(int)>(dlsym(sample, "SampleCublasRefuses"));
  ASSERT_NE(refuse, nullptr);
  refuse(3);
  EXPECT_THAT(LoadCublasGemm(device_.get(), 64, {kSample}),
              StatusIs(StatusCode::kInternal, HasSubstr("cublasCreate said 3")));
  refuse(0);
  EXPECT_EQ(api_.Held(), held);
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
