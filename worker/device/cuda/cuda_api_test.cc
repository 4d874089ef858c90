// The real driver as far as a machine without a device goes, and that the fake keeps the contract.
#include "worker/device/cuda/cuda_api.h"

#include <fcntl.h>

#include <atomic>
#include <cstring>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(CudaErrorTest, NamesTheCallAndTheErrorAndSaysWhatItMeans) {
  EXPECT_OK(CudaStatus("cuInit", kCudaSuccess));
  EXPECT_EQ(CudaStatus("cuMemAlloc", kCudaOutOfMemory),
            absl::ResourceExhaustedError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"));
  EXPECT_EQ(CudaStatus("cuInit", 4242), absl::UnknownError("cuInit: CUDA error 4242"));
  EXPECT_FALSE(IsBroken(CudaStatus("cuMemAlloc", kCudaOutOfMemory)));
  EXPECT_FALSE(IsBroken(CudaStatus("cuMemAlloc", kCudaInvalidContext)));
  EXPECT_FALSE(IsBroken(CudaStatus("cuEventQuery", kCudaNotReady)));
  for (int sticky : {kCudaIllegalAddress, kCudaLaunchFailed, kCudaEccUncorrectable}) {
    EXPECT_THAT(CudaStatus("cuStreamSynchronize", sticky),
                StatusIs(absl::StatusCode::kInternal, testing::_));
  }
  EXPECT_THAT(CudaStatus("cuInit", kCudaDeviceUnavailable),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_TRUE(IsBroken(CudaStatus("cuInit", kCudaDeviceUnavailable)));
}

TEST(CudaApiTest, MachineWithoutADriverOrABuildWithoutCudaIsAnErrorThatSaysWhich) {
  const absl::StatusOr<CudaApi*> api = LoadCudaApi();
  if (api.ok()) {
    EXPECT_OK((*api)->DriverGetVersion());
    return;
  }
  EXPECT_THAT(api.status().code(),
              testing::AnyOf(absl::StatusCode::kUnimplemented, absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(api.status().message()),
              testing::AnyOf(HasSubstr("libcuda.so.1"), HasSubstr("built without CUDA")));
}

TEST(FakeCudaApiTest, CallsWithoutInitOrContextAreRefusedAsTheDriverRefusesThem) {
  FakeCudaApi api;
  EXPECT_THAT(api.DeviceGetCount(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("NOT_INITIALIZED")));
  ASSERT_OK(api.Init());
  EXPECT_THAT(api.MemAlloc(64),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("INVALID_CONTEXT")));
  ASSERT_OK_AND_ASSIGN(CudaContext * context, api.DevicePrimaryCtxRetain(0));
  ASSERT_OK(api.CtxSetCurrent(context));
  ASSERT_OK_AND_ASSIGN(const CudaAddress address, api.MemAlloc(64));
  EXPECT_THAT(api.Held(), HasSubstr("allocations=1"));
  EXPECT_OK(api.MemFree(address));
  EXPECT_OK(api.DevicePrimaryCtxRelease(0));
  EXPECT_EQ(api.Held(), "");
}

TEST(FakeCudaApiTest, TimedEventsReadTheDevicesClockInTheOrderOfTheStream) {
  FakeCudaApi::Options options;
  options.copy_bytes_per_second = 1e6;
  FakeCudaApi api(options);
  ASSERT_OK(api.Init());
  ASSERT_OK_AND_ASSIGN(CudaContext * context, api.DevicePrimaryCtxRetain(0));
  ASSERT_OK(api.CtxSetCurrent(context));
  ASSERT_OK_AND_ASSIGN(CudaStreamHandle * stream, api.StreamCreateWithPriority(0));
  ASSERT_OK_AND_ASSIGN(CudaEventHandle * start, api.EventCreateTimed());
  ASSERT_OK_AND_ASSIGN(CudaEventHandle * end, api.EventCreateTimed());
  ASSERT_OK_AND_ASSIGN(CudaEventHandle * untimed, api.EventCreate());
  ASSERT_OK_AND_ASSIGN(const CudaAddress memory, api.MemAlloc(2000));
  ASSERT_OK(api.MemcpyAsync(memory, memory + 1000, 1000, stream));
  ASSERT_OK(api.EventRecord(start, stream));
  EXPECT_THAT(api.EventElapsedTime(start, end),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuEventElapsedTime")))
      << "one was never recorded";
  ASSERT_OK(api.MemcpyAsync(memory, memory + 1000, 500, stream));
  api.RunOnStream(stream, [&api] { api.AdvanceClock(0.25); });
  ASSERT_OK(api.EventRecord(end, stream));
  ASSERT_OK(api.EventRecord(untimed, stream));
  ASSERT_OK(api.StreamSynchronize(stream));
  ASSERT_OK_AND_ASSIGN(const double milliseconds, api.EventElapsedTime(start, end));
  EXPECT_NEAR(milliseconds, 250.5, 1e-3);
  EXPECT_FALSE(api.EventElapsedTime(start, untimed).ok());
  for (CudaEventHandle* event : {start, end, untimed}) EXPECT_OK(api.EventDestroy(event));
  EXPECT_OK(api.StreamDestroy(stream));
  EXPECT_OK(api.MemFree(memory));
  EXPECT_OK(api.DevicePrimaryCtxRelease(0));
  EXPECT_EQ(api.Held(), "");
}

TEST(FakeCudaApiTest, PlannedErrorComesOnceAtTheCallThatWasMeant) {
  FakeCudaApi api;
  ASSERT_OK(api.Init());
  api.FailCall("DeviceGetCount", kCudaNotPermitted, /*skip=*/1);
  EXPECT_OK(api.DeviceGetCount());
  EXPECT_THAT(api.DeviceGetCount(), StatusIs(absl::StatusCode::kPermissionDenied, testing::_));
  EXPECT_OK(api.DeviceGetCount());
  EXPECT_EQ(api.num_calls("DeviceGetCount"), 3);
}

TEST(FakeCudaApiTest, SharedMemoryIsSeenThroughEachMappingAndRefusesWhatIsNotGranular) {
  FakeCudaApi api;
  ASSERT_OK(api.Init());
  ASSERT_OK_AND_ASSIGN(const int64_t granularity, api.MemGetAllocationGranularity(0));
  EXPECT_THAT(api.MemCreate(0, granularity + 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuMemCreate")));
  ASSERT_OK_AND_ASSIGN(const CudaMemHandle handle, api.MemCreate(0, granularity));
  CudaAddress at[2];
  for (CudaAddress& address : at) {
    ASSERT_OK_AND_ASSIGN(address, api.MemAddressReserve(granularity, 0));
    ASSERT_OK(api.MemMap(address, granularity, handle));
    ASSERT_OK(api.MemSetAccess(address, granularity, 0, CudaAccess::kReadWrite));
  }
  std::strcpy(reinterpret_cast<char*>(at[0]), "one memory");
  EXPECT_STREQ(reinterpret_cast<char*>(at[1]), "one memory");
  EXPECT_THAT(api.MemAddressFree(at[0], granularity),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_))
      << "still mapped";
  ASSERT_OK(api.MemRelease(handle));
  for (CudaAddress address : at) {
    EXPECT_THAT(api.Held(), HasSubstr("bytes=65536")) << "a mapping holds the memory";
    ASSERT_OK(api.MemUnmap(address, granularity));
    ASSERT_OK(api.MemAddressFree(address, granularity));
  }
  EXPECT_EQ(api.Held(), "");
}

}  // namespace
}  // namespace tessera
