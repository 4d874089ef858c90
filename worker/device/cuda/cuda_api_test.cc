// The real driver as far as a machine without a device goes, and that the fake keeps the contract.
#include "worker/device/cuda/cuda_api.h"

#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

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
  EXPECT_FALSE(IsBroken(CudaStatus("cuStreamEndCapture", kCudaStreamCaptureUnsupported)));
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

// A current context of an own fake.
class FakeCudaContextTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(api_.Init());
    ASSERT_OK_AND_ASSIGN(CudaContext * context, api_.DevicePrimaryCtxRetain(0));
    ASSERT_OK(api_.CtxSetCurrent(context));
    ASSERT_OK_AND_ASSIGN(stream_, api_.StreamCreateWithPriority(0));
  }
  void TearDown() override {
    EXPECT_OK(api_.StreamDestroy(stream_));
    EXPECT_OK(api_.DevicePrimaryCtxRelease(0));
    EXPECT_EQ(api_.Held(), "");
  }
  bool IsReached(CudaEventHandle* event) {
    const absl::StatusOr<bool> reached = api_.EventQuery(event);
    EXPECT_OK(reached);
    return reached.value_or(false);
  }

  FakeCudaApi api_;
  CudaStreamHandle* stream_ = nullptr;
};

TEST_F(FakeCudaContextTest, GraphRunsWhatItsStreamWasGivenEachTimeItIsLaunched) {
  ASSERT_OK_AND_ASSIGN(const CudaAddress memory, api_.MemAlloc(2));
  auto* const bytes = reinterpret_cast<uint8_t*>(memory);
  bytes[0] = bytes[1] = 1;
  int runs = 0;
  ASSERT_OK(api_.StreamBeginCapture(stream_));
  EXPECT_FALSE(api_.StreamBeginCapture(stream_).ok()) << "twice";
  ASSERT_OK(api_.MemsetD8Async(memory, 7, 1, stream_));
  ASSERT_OK(api_.MemcpyAsync(memory + 1, memory, 1, stream_));
  api_.RunOnStream(stream_, [&runs] { ++runs; });
  EXPECT_THAT(api_.StreamSynchronize(stream_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("CAPTURE_UNSUPPORTED")));
  ASSERT_OK_AND_ASSIGN(CudaGraphHandle* const graph, api_.StreamEndCapture(stream_));
  EXPECT_FALSE(api_.StreamEndCapture(stream_).ok()) << "nothing is kept any more";
  ASSERT_OK(api_.StreamSynchronize(stream_));
  EXPECT_EQ(bytes[1], 1) << "it was kept, and not run";
  EXPECT_THAT(api_.Held(), HasSubstr("graphs=1"));
  for (int launch = 1; launch <= 2; ++launch) {
    bytes[0] = bytes[1] = 1;
    ASSERT_OK(api_.GraphLaunch(graph, stream_));
    ASSERT_OK(api_.StreamSynchronize(stream_));
    EXPECT_EQ(bytes[1], 7) << "in its order";
    EXPECT_EQ(runs, launch);
  }
  EXPECT_OK(api_.GraphDestroy(graph));
  EXPECT_OK(api_.MemFree(memory));
}

TEST_F(FakeCudaContextTest, MemoryOfTheHostIsRegisteredOnceAndNoPartOfItTwice) {
  std::vector<char> memory(3000);
  ASSERT_OK(api_.MemHostRegister(&memory[1000], 1000));
  EXPECT_THAT(api_.Held(), HasSubstr("registered=1"));
  const std::pair<int, int> overlapping[] = {{1000, 1000}, {0, 1001}, {1999, 1}, {500, 2000}};
  for (const auto& [begin, size_bytes] : overlapping) {
    EXPECT_THAT(api_.MemHostRegister(&memory[begin], size_bytes),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("cuMemHostRegister")))
        << begin << ", " << size_bytes;
  }
  ASSERT_OK(api_.MemHostRegister(&memory[0], 1000));
  ASSERT_OK(api_.MemHostRegister(&memory[2000], 1000));
  EXPECT_TRUE(api_.Holds(&memory[1500], 500));
  EXPECT_FALSE(api_.Holds(&memory[1500], 501));
  ASSERT_OK_AND_ASSIGN(void* const pinned, api_.MemHostAlloc(64));
  EXPECT_THAT(api_.MemHostRegister(pinned, 64),
              StatusIs(absl::StatusCode::kAlreadyExists, testing::_));
  EXPECT_OK(api_.MemFreeHost(pinned));
  EXPECT_THAT(api_.MemHostRegister(nullptr, 64),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(api_.MemHostUnregister(&memory[1]),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cuMemHostUnregister")));
  for (const int begin : {0, 1000, 2000}) EXPECT_OK(api_.MemHostUnregister(&memory[begin]));
  EXPECT_THAT(api_.MemHostUnregister(&memory[0]),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("NOT_REGISTERED")));
}

TEST_F(FakeCudaContextTest, EventForSeveralProcessesIsAnEventOfItsOwnToo) {
  ASSERT_OK_AND_ASSIGN(void* const pinned, api_.MemHostAlloc(sizeof(uint32_t)));
  auto* const word = new (pinned) std::atomic<uint32_t>(0);
  ASSERT_OK_AND_ASSIGN(CudaEventHandle * event, api_.EventCreateInterprocess());
  EXPECT_TRUE(IsReached(event)) << "never recorded";
  EXPECT_OK(api_.EventSynchronize(event));
  ASSERT_OK(api_.StreamWaitValue32(stream_, reinterpret_cast<CudaAddress>(word), 1));
  ASSERT_OK(api_.EventRecord(event, stream_));
  EXPECT_FALSE(IsReached(event));
  ASSERT_OK_AND_ASSIGN(CudaStreamHandle * other, api_.StreamCreateWithPriority(0));
  ASSERT_OK(api_.StreamWaitEvent(other, event));
  std::atomic<uint32_t> word_at_end{0};
  api_.RunOnStream(other, [&] { word_at_end = word->load(); });
  *word = 1;
  ASSERT_OK(api_.EventSynchronize(event));
  EXPECT_TRUE(IsReached(event));
  ASSERT_OK(api_.StreamSynchronize(other));
  EXPECT_EQ(word_at_end, 1);
  EXPECT_OK(api_.EventDestroy(event));
  EXPECT_OK(api_.StreamDestroy(other));
  EXPECT_OK(api_.MemFreeHost(pinned));
}

TEST_F(FakeCudaContextTest, WhatIsNoEventOfAnotherProcessIsNotOpened) {
  ASSERT_OK_AND_ASSIGN(CudaEventHandle * event, api_.EventCreateInterprocess());
  ASSERT_OK_AND_ASSIGN(CudaEventHandle * plain, api_.EventCreate());
  EXPECT_THAT(api_.IpcGetEventHandle(plain),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuIpcGetEventHandle")));
  ASSERT_OK_AND_ASSIGN(const CudaIpcEventHandle own, api_.IpcGetEventHandle(event));
  for (const CudaIpcEventHandle& handle : {own, CudaIpcEventHandle()}) {
    EXPECT_THAT(api_.IpcOpenEventHandle(handle),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuIpcOpenEventHandle")));
  }
  EXPECT_OK(api_.EventDestroy(event));
  EXPECT_OK(api_.EventDestroy(plain));
}

TEST_F(FakeCudaContextTest, BrokenContextEndsWaitsForEventsOfSeveralProcessesAndReachesNone) {
  ASSERT_OK_AND_ASSIGN(void* const pinned, api_.MemHostAlloc(sizeof(uint32_t)));
  auto* const word = new (pinned) std::atomic<uint32_t>(0);
  ASSERT_OK_AND_ASSIGN(CudaEventHandle * event, api_.EventCreateInterprocess());
  ASSERT_OK_AND_ASSIGN(CudaStreamHandle * other, api_.StreamCreateWithPriority(0));
  ASSERT_OK(api_.StreamWaitValue32(stream_, reinterpret_cast<CudaAddress>(word), 1));
  ASSERT_OK(api_.EventRecord(event, stream_));
  ASSERT_OK(api_.StreamWaitEvent(other, event));
  api_.Break(kCudaIllegalAddress);
  for (CudaStreamHandle* stream : {other, stream_}) {  // Each waits for what is queued.
    EXPECT_THAT(api_.StreamDestroy(stream), StatusIs(absl::StatusCode::kInternal, testing::_));
  }
  api_.Break(kCudaSuccess);
  EXPECT_FALSE(IsReached(event));
  EXPECT_OK(api_.EventDestroy(event));
  EXPECT_OK(api_.MemFreeHost(pinned));
  ASSERT_OK_AND_ASSIGN(stream_, api_.StreamCreateWithPriority(0));
}

TEST(FakeCudaApiTest, DeviceWithoutEventsOfSeveralProcessesSaysSo) {
  FakeCudaApi::Options options;
  options.ipc_events = false;
  FakeCudaApi api(options);
  ASSERT_OK(api.Init());
  ASSERT_OK_AND_ASSIGN(const int supported,
                       api.DeviceGetAttribute(CudaAttribute::kIpcEventSupported, 0));
  EXPECT_EQ(supported, 0);
  ASSERT_OK_AND_ASSIGN(CudaContext * context, api.DevicePrimaryCtxRetain(0));
  ASSERT_OK(api.CtxSetCurrent(context));
  EXPECT_THAT(api.IpcOpenEventHandle({}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("NOT_SUPPORTED")));
}

TEST(FakeCudaApiTest, SharedMemoryIsSeenThroughEachMappingAndRefusesWhatIsNotGranular) {
  FakeCudaApi api;
  ASSERT_OK(api.Init());
  ASSERT_OK_AND_ASSIGN(const int64_t granularity, api.MemGetAllocationGranularity(0));
  EXPECT_THAT(api.MemCreate(0, granularity + 1, /*gpu_direct_rdma=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuMemCreate")));
  ASSERT_OK_AND_ASSIGN(const CudaMemHandle handle,
                       api.MemCreate(0, granularity, /*gpu_direct_rdma=*/false));
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
