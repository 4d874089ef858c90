// CudaDevice over a driver that fails where it is told.
#include "worker/device/cuda/cuda_device.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/no_more_threads.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/cuda_versions.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/device_conformance.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

// The fake outlives all devices of the suite.
absl::StatusOr<std::unique_ptr<Device>> CreateOverFake() {
  static auto* const api = new FakeCudaApi();
  return CudaDevice::Create(api, {});
}

INSTANTIATE_TEST_SUITE_P(CudaOverFake, DeviceConformanceTest,
                         testing::Values(DeviceBackend{"CudaOverFake", CreateOverFake, {}}));

// Without a driver or device the suite is skipped.
absl::StatusOr<std::unique_ptr<Device>> CreateReal() {
  const absl::StatusOr<CudaApi*> api = LoadCudaApi();
  if (!api.ok()) return absl::UnavailableError(api.status().message());
  absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(*api, {});
  if (absl::IsNotFound(device.status())) return absl::UnavailableError(device.status().message());
  return device;
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformanceTest,
                         testing::Values(DeviceBackend{"Cuda", CreateReal, {}}));

TEST(CudaDeviceTest, NoDeviceADriverTooOldAndAWrongNumberAreErrorsThatSaySo) {
  FakeCudaApi::Options none;
  none.num_devices = 0;
  FakeCudaApi no_device(none);
  EXPECT_THAT(CudaDevice::Create(&no_device, {}),
              StatusIs(StatusCode::kNotFound, HasSubstr("CUDA_ERROR_NO_DEVICE")));
  FakeCudaApi::Options old;
  old.driver_version = LeastDriverVersion() - 10;
  FakeCudaApi old_driver(old);
  // Of the toolkit's major version, whose runtime is linked: an older driver refuses its launches.
  const int major = LeastDriverVersion() / 1000;
  EXPECT_EQ(major, std::max(12, QueryCudaVersions().toolkit / 1000));
  EXPECT_THAT(CudaDevice::Create(&old_driver, {}),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(absl::StrCat("serves CUDA ", major - 1, ".")),
                             HasSubstr(absl::StrCat(", and CUDA ", major, ".0 is needed")))));
  FakeCudaApi api;
  CudaDevice::Options third;
  third.device = 2;
  EXPECT_THAT(CudaDevice::Create(&api, third),
              StatusIs(StatusCode::kNotFound, HasSubstr("no cuda:2: there are 1 devices")));
}

// Every call of the driver that making a device with its parts takes, failing in turn: an error by
// name, and nothing is leaked.
TEST(CudaDeviceTest, MemoryThatRunsOutAtAnyCallIsAnErrorAndLeavesAllAsItWas) {
  const auto make_all = [](FakeCudaApi* api) -> absl::Status {
    absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(api, {});
    if (!device.ok()) return device.status();
    absl::StatusOr<Buffer> buffer = (*device)->Allocate(1000);
    if (!buffer.ok()) return buffer.status();
    absl::StatusOr<Buffer> pinned = (*device)->AllocatePinned(1000);
    if (!pinned.ok()) return pinned.status();
    absl::StatusOr<std::unique_ptr<Stream>> stream = (*device)->CreateStream("unshard");
    if (!stream.ok()) return stream.status();
    return (*device)->CreateEvent().status();
  };
  for (const char* call : {"DevicePrimaryCtxRetain", "MemAlloc", "MemHostAlloc",
                           "StreamCreateWithPriority", "EventCreate"}) {
    for (int skip = 0; skip < (std::string(call) == "MemHostAlloc" ? 2 : 1); ++skip) {
      SCOPED_TRACE(absl::StrCat(call, " after ", skip));
      FakeCudaApi api;
      api.FailCall(call, kCudaOutOfMemory, skip);
      EXPECT_THAT(make_all(&api), StatusIs(StatusCode::kResourceExhausted,
                                           testing::AllOf(HasSubstr("cuda:0"), HasSubstr(call))));
      EXPECT_EQ(api.Held(), "");
      EXPECT_OK(make_all(&api)) << "it works again at once";
      EXPECT_EQ(api.Held(), "");
    }
  }
}

TEST(CudaDeviceTest, MemoryThatIsNotThereNamesWhatWasWantedAndWhatIsFree) {
  FakeCudaApi::Options options;
  options.memory_bytes = 1000;
  FakeCudaApi api(options);
  ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
  ASSERT_OK_AND_ASSIGN(Buffer first, device->Allocate(600));
  const char* text = "wanted 500 bytes, 400 of 1000 bytes are free";
  EXPECT_THAT(device->Allocate(500), StatusIs(StatusCode::kResourceExhausted, HasSubstr(text)));
  EXPECT_THAT(device->AllocatePinned(500),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr(text)));
  EXPECT_OK(device->status()) << "memory that runs out breaks nothing";
  {
    ASSERT_OK_AND_ASSIGN(const Buffer rest, device->Allocate(400));
    EXPECT_THAT(device->CreateStream("unshard"),
                StatusIs(StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("cuda:0 stream 'unshard'"),
                               HasSubstr("wanted 4 bytes, 0 of 1000 bytes are free"))));
  }
  first.Reset();
  EXPECT_OK(device->Allocate(500));
}

TEST(CudaDeviceTest, StickyErrorOfWorkIsKeptAndEveryCallReturnsIt) {
  FakeCudaApi api;
  ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
  ASSERT_OK_AND_ASSIGN(auto event, device->CreateEvent());
  ASSERT_OK_AND_ASSIGN(auto stream, device->CreateStream("unshard"));
  bool copied_after = false;
  stream->Enqueue([&api] { api.Break(kCudaIllegalAddress); });
  stream->Record(event.get());
  stream->Enqueue([&copied_after] { copied_after = true; });
  stream->Synchronize();
  EXPECT_TRUE(copied_after) << "host work still runs, so that nobody waits for it";
  EXPECT_THAT(device->status(),
              StatusIs(StatusCode::kInternal,
                       testing::AllOf(HasSubstr("cuda:0"), HasSubstr("ILLEGAL_ADDRESS"))));
  EXPECT_TRUE(event->Query()) << "nobody waits for a mark that will not come";
  event->Synchronize();
  EXPECT_THAT(device->Allocate(1), StatusIs(StatusCode::kInternal, HasSubstr("ILLEGAL_ADDRESS")));
  EXPECT_THAT(device->CreateStream("x"), StatusIs(StatusCode::kInternal, testing::_));
}

TEST(CudaDeviceTest, LostDeviceEndsEveryWaitAndIsNamedOnce) {
  FakeCudaApi api;
  ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
  ASSERT_OK_AND_ASSIGN(auto stream, device->CreateStream("unshard"));
  absl::Notification entered;
  absl::Notification release;
  stream->Enqueue([&] {
    entered.Notify();
    release.WaitForNotification();
  });
  int ran = 0;
  for (int i = 0; i < 10; ++i) stream->Enqueue([&ran] { ++ran; });
  entered.WaitForNotification();
  api.Break(kCudaDeviceUnavailable);
  release.Notify();
  stream->Synchronize();
  EXPECT_EQ(ran, 10);
  stream->Enqueue([&ran] { ++ran; });
  stream.reset();
  EXPECT_EQ(ran, 11);
  EXPECT_THAT(device->status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("DEVICE_UNAVAILABLE")));
}

TEST(CudaDeviceTest, CallThatFailsOnceIsKeptWhateverItIs) {
  for (const char* call :
       {"EventRecord", "StreamWaitEvent", "MemcpyAsync", "MemsetD8Async", "LaunchHostFunc",
        "StreamWaitValue32", "StreamSynchronize", "EventQuery", "EventSynchronize", "MemFree"}) {
    SCOPED_TRACE(call);
    FakeCudaApi api;
    ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
    ASSERT_OK_AND_ASSIGN(auto stream, device->CreateStream("unshard"));
    ASSERT_OK_AND_ASSIGN(auto event, device->CreateEvent());
    ASSERT_OK_AND_ASSIGN(Buffer buffer, device->Allocate(64));
    api.FailCall(call, kCudaNotPermitted);
    bool ran = false;
    stream->Enqueue([&ran] { ran = true; });
    device->Fill(stream.get(), buffer.data(), 1, 64);
    device->Copy(stream.get(), buffer.data(), buffer.data_as<char>() + 32, 32);
    stream->Record(event.get());
    stream->Wait(event.get());
    (void)event->Query();
    event->Synchronize();
    stream->Synchronize();
    buffer.Reset();
    EXPECT_TRUE(ran);
    EXPECT_THAT(device->status(), StatusIs(StatusCode::kPermissionDenied, HasSubstr(call)));
    stream.reset();
  }
}

TEST(CudaDeviceTest, StreamWithoutAThreadLeavesNothing) {
  FakeCudaApi api;
  {
    ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
    const NoMoreThreads limit;
    EXPECT_THAT(device->CreateStream("unshard"),
                StatusIs(StatusCode::kResourceExhausted, testing::_));
  }
  EXPECT_EQ(api.Held(), "");
}

TEST(CudaDeviceTest, PrioritiesAreThoseOfTheStreamsUse) {
  const CudaPriorityRange range = {0, -5};
  for (const char* name : {"pre-unshard", "unshard", "post-backward"}) {
    EXPECT_EQ(StreamPriority(name, true, range), -1) << name;
    EXPECT_EQ(StreamPriority(name, false, range), 0) << name;
    EXPECT_EQ(StreamPriority(name, true, {0, 0}), 0) << "a device without priorities";
  }
  EXPECT_EQ(StreamPriority("all-reduce", true, range), 0);
  FakeCudaApi api;
  ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
  const auto priority_of = [&](absl::string_view name) {
    return api.PriorityOf(static_cast<CudaStream*>(device->CreateStream(name)->get())->handle());
  };
  EXPECT_EQ(priority_of("unshard"), 0);
  EXPECT_EQ(api.num_urgent_streams(), 0);
  device->PutGathersFirst();
  EXPECT_EQ(priority_of("unshard"), -1);
  EXPECT_EQ(priority_of("rank-kernels"), 0);
  EXPECT_EQ(api.num_urgent_streams(), 1);
}

TEST(CudaDeviceTest, MemoryOfOthersIsPinnedUntilItsHandleGoesAndNeverTwice) {
  FakeCudaApi api;
  std::vector<char> memory(3000);
  {
    ASSERT_OK_AND_ASSIGN(auto device, CudaDevice::Create(&api, {}));
    ASSERT_OK_AND_ASSIGN(Buffer pinned, device->Pin(&memory[1000], 1000));
    EXPECT_TRUE(api.Holds(&memory[1000], 1000));
    EXPECT_THAT(device->Pin(&memory[1500], 1000),
                StatusIs(StatusCode::kAlreadyExists,
                         testing::AllOf(HasSubstr("cuda:0"), HasSubstr("1000 bytes to pin"))));
    api.FailCall("MemHostRegister", kCudaOutOfMemory);
    EXPECT_THAT(device->Pin(&memory[0], 500), StatusIs(StatusCode::kResourceExhausted, testing::_));
    EXPECT_OK(device->status()) << "nothing is broken by it";
    pinned.Reset();
    EXPECT_FALSE(api.Holds(&memory[1000], 1000));
    EXPECT_OK(device->Pin(&memory[1500], 1000));
    EXPECT_OK(device->Pin(nullptr, 0));
  }
  EXPECT_EQ(api.Held(), "");
}

}  // namespace
}  // namespace tessera
