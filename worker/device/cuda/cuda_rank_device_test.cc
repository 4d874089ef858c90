// A GPU as what a rank works on, and as a keeper's memory, over a driver that fails where it is
// told. What its kernels compute is in rank_kernels_device_test.cc.
#include "worker/device/cuda/cuda_rank_device.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytes = 100'000;
constexpr int64_t kRounded = 128 << 10;  // By the fake's granularity.

// "rw-s" of the mapping at the address, which the fake makes as a device would.
std::string ProtectionOf(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const std::string begin = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(address)), "-");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StartsWith(line, begin)) return line.substr(line.find(' ') + 1, 4);
  }
  return "";
}

class CudaRankDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(memory_, CudaDeviceMemory::Create(&api_, 0));
    ASSERT_OK_AND_ASSIGN(device_, CudaRankDevice::Create(&api_, 0));
    ASSERT_OK_AND_ASSIGN(kernels_, device_->CreateKernels({}));
    ASSERT_OK_AND_ASSIGN(descriptor_, memory_->Create("job/0/state", kBytes));
  }
  void TearDown() override {
    kernels_.reset();
    descriptor_.Reset();
    device_.reset();
    memory_.reset();
    EXPECT_EQ(api_.Held(), "");
  }
  void Write(const Buffer& region, const std::string& bytes, int64_t at) {
    kernels_->Copy(region.data_as<char>() + at, bytes.data(), bytes.size());
    ASSERT_OK(kernels_->Finish());
  }

  FakeCudaApi api_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<CudaRankDevice> device_;
  std::unique_ptr<RankKernels> kernels_;
  UniqueFd descriptor_;
};

TEST_F(CudaRankDeviceTest, RegionsAreOfTheKeepersMemoryAndWritableWhereThatWasAskedFor) {
  EXPECT_EQ(device_->name(), "cuda:0");
  EXPECT_TRUE(device_->is_separate());
  ASSERT_OK_AND_ASSIGN(const Buffer writer, device_->MapRegion(descriptor_.get(), kBytes, true));
  ASSERT_OK_AND_ASSIGN(const Buffer reader, device_->MapRegion(descriptor_.get(), kBytes, false));
  EXPECT_EQ(writer.size_bytes(), kRounded);
  EXPECT_EQ(ProtectionOf(writer.data()), "rw-s");
  EXPECT_EQ(ProtectionOf(reader.data()), "r--s");
  Write(writer, "written", kBytes - 7);
  std::string read(7, 0);
  kernels_->Copy(read.data(), reader.data_as<char>() + kBytes - 7, 7);
  ASSERT_OK(kernels_->Finish());
  EXPECT_EQ(read, "written");
}

TEST_F(CudaRankDeviceTest, WhatIsNoMemoryOfTheDeviceOrLessIsRefusedAndLeavesNothing) {
  const std::string before = api_.Held();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  for (const int descriptor : {read_end.get(), -1}) {
    EXPECT_THAT(device_->MapRegion(descriptor, kBytes, true),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("memory of another process")));
  }
  for (const int64_t size_bytes : {kRounded + 1, int64_t{0}, int64_t{-1}}) {
    EXPECT_THAT(device_->MapRegion(descriptor_.get(), size_bytes, true),
                StatusIs(StatusCode::kInvalidArgument, testing::_))
        << size_bytes;
  }
  EXPECT_EQ(api_.Held(), before);
}

TEST_F(CudaRankDeviceTest, CallOfTheDriverThatFailsMapsNothingAndLeavesNothing) {
  const std::string before = api_.Held();
  for (const char* call :
       {"CtxSetCurrent", "MemGetAllocationGranularity", "MemImportFromShareableHandle",
        "MemAddressReserve", "MemMap", "MemSetAccess"}) {
    api_.FailCall(call, kCudaOutOfMemory);
    EXPECT_THAT(device_->MapRegion(descriptor_.get(), kBytes, true),
                StatusIs(StatusCode::kResourceExhausted, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")))
        << call;
    EXPECT_EQ(api_.Held(), before) << call;
  }
  EXPECT_OK(device_->MapRegion(descriptor_.get(), kBytes, true));
}

TEST_F(CudaRankDeviceTest, KnowsItsAddressesAsLongAsTheyAreMapped) {
  ASSERT_OK_AND_ASSIGN(Buffer a, device_->MapRegion(descriptor_.get(), kBytes, true));
  ASSERT_OK_AND_ASSIGN(const Buffer b, device_->MapRegion(descriptor_.get(), kBytes, true));
  const char* const begin = a.data_as<char>();
  EXPECT_TRUE(device_->IsOnDevice(begin));
  EXPECT_TRUE(device_->IsOnDevice(begin + kRounded - 1));
  EXPECT_FALSE(device_->IsOnDevice(&a));
  EXPECT_FALSE(device_->IsOnDevice(nullptr));
  a.Reset();
  EXPECT_FALSE(device_->IsOnDevice(begin));
  EXPECT_TRUE(device_->IsOnDevice(b.data()));
}

// As those of a trainer that hosts its executor. The driver refuses an event of the own process.
TEST_F(CudaRankDeviceTest, EventOfThisProcessIsOpenedByItsNameAndIsGoneWithItsMaker) {
  ASSERT_OK_AND_ASSIGN(const auto other, CudaRankDevice::Create(&api_, 0));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<SharedEvent> made, device_->CreateSharedEvent());
  CudaIpcEventHandle of_cuda;
  memcpy(of_cuda.bytes, made->name().bytes, sizeof(of_cuda.bytes));
  EXPECT_FALSE(api_.IpcOpenEventHandle(of_cuda).ok());
  const std::string with_event = api_.Held();
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<SharedEvent> opened, other->OpenSharedEvent(made->name()));
  EXPECT_TRUE(opened->name() == made->name());
  EXPECT_EQ(api_.Held(), with_event) << "it is the same one";

  // The row of work stands until the word is written.
  ASSERT_OK_AND_ASSIGN(const Buffer region, device_->MapRegion(descriptor_.get(), kBytes, true));
  ASSERT_OK_AND_ASSIGN(CudaStreamHandle* const stream, api_.StreamCreateWithPriority(0));
  uint32_t word = 0;
  ASSERT_OK(api_.MemHostRegister(&word, sizeof(word)));
  ASSERT_OK(api_.StreamWaitValue32(stream, reinterpret_cast<CudaAddress>(&word), 1));
  kernels_->WaitForStream(stream);
  kernels_->Record(made.get());
  ASSERT_OK_AND_ASSIGN(bool reached, opened->Query());
  EXPECT_FALSE(reached);
  __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
  ASSERT_OK(kernels_->Finish());
  ASSERT_OK_AND_ASSIGN(reached, opened->Query());
  EXPECT_TRUE(reached);
  ASSERT_OK(api_.MemHostUnregister(&word));
  ASSERT_OK(api_.StreamDestroy(stream));

  api_.FailCall("EventQuery", kCudaIllegalAddress);
  EXPECT_FALSE(opened->Query().ok()) << "of the device";
  made.reset();
  EXPECT_THAT(opened->Query(), StatusIs(StatusCode::kUnavailable, HasSubstr("destroyed")));
  const SharedEventName gone = opened->name();
  opened.reset();
  EXPECT_THAT(other->OpenSharedEvent(gone),
              StatusIs(StatusCode::kUnavailable, HasSubstr("an event of another process")));
  ASSERT_OK_AND_ASSIGN(const auto third, CudaRankDevice::Create(&api_, 0));
  EXPECT_THAT(third->OpenSharedEvent(gone),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("an event of another process")))
      << "for all that is known here, none can be opened";
}

TEST(CudaSharedEventTest, DeviceWithoutSuchEventsSaysSoAndMakesNone) {
  FakeCudaApi::Options options;
  options.ipc_events = false;
  FakeCudaApi api(options);
  ASSERT_OK_AND_ASSIGN(const auto device, CudaRankDevice::Create(&api, 0));
  EXPECT_THAT(device->CreateSharedEvent(),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("cuda:0 has no events")));
  EXPECT_EQ(api.num_calls("EventCreateInterprocess"), 0);
}

TEST_F(CudaRankDeviceTest, ErrorOfAnyKernelsIsThatOfAllOfTheDeviceForGoodAndOfNoOther) {
  for (const bool state_on_host : {false, true}) {
    SCOPED_TRACE(state_on_host);
    ASSERT_OK_AND_ASSIGN(const auto device, CudaRankDevice::Create(&api_, 0));
    RankDevice::KernelOptions options;
    options.state_on_host = state_on_host;
    ASSERT_OK_AND_ASSIGN(const auto failing, device->CreateKernels(options));
    ASSERT_OK_AND_ASSIGN(const auto beside, device->CreateKernels(options));
    // A launch that is refused, as one without resources is.
    const float* const nowhere = nullptr;
    float sum = 0;
    failing->Reduce({nowhere}, DType::kFp32, 1, 1.0, false, &sum, false);
    for (RankKernels* kernels : {failing.get(), beside.get(), failing.get()}) {
      EXPECT_THAT(kernels->Finish(),
                  StatusIs(StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("cuda:0"), HasSubstr("kernel Reduce: a pointer"))));
      host::GradientStats stats;
      stats.sum_of_squares = 5;
      EXPECT_FALSE(kernels->TakeStats(&stats).ok());
      EXPECT_EQ(stats.sum_of_squares, 5) << "not touched";
      EXPECT_FALSE(kernels->TakeNormPart().ok());
    }
    EXPECT_OK(kernels_->Finish());
  }
}

TEST_F(CudaRankDeviceTest, KernelsForWhichTheDeviceHasNoRoomAreAnErrorAndLeaveNothing) {
  const std::string before = api_.Held();
  for (const bool state_on_host : {false, true}) {
    RankDevice::KernelOptions options;
    options.state_on_host = state_on_host;
    for (const char* call : {"MemAlloc", "MemHostAlloc", "StreamCreateWithPriority"}) {
      api_.FailCall(call, kCudaOutOfMemory);
      EXPECT_THAT(device_->CreateKernels(options),
                  StatusIs(StatusCode::kResourceExhausted, HasSubstr("cuda:0")))
          << call;
      EXPECT_EQ(api_.Held(), before) << call;
    }
  }
}

TEST_F(CudaRankDeviceTest, DescriptorHoldsTheMemoryAndReadersReadItWhateverElseIsGone) {
  {
    ASSERT_OK_AND_ASSIGN(const Buffer region, device_->MapRegion(descriptor_.get(), kBytes, true));
    Write(region, "held", 70'000);
  }
  kernels_.reset();
  device_.reset();
  EXPECT_EQ(api_.Held(), "") << "the descriptor alone is left";
  ASSERT_OK_AND_ASSIGN(auto reader, memory_->OpenReader(descriptor_.get(), kBytes));
  descriptor_.Reset();
  std::string read(4, 0);
  ASSERT_OK(reader->Read(read.data(), 70'000, 4));
  EXPECT_EQ(read, "held");
}

TEST_F(CudaRankDeviceTest, ReaderOfWhatIsNoSuchMemoryIsRefusedAndOneThatBreaksSaysSo) {
  EXPECT_THAT(memory_->OpenReader(-1, kBytes), StatusIs(StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(memory_->OpenReader(descriptor_.get(), kRounded + 1),
              StatusIs(StatusCode::kInvalidArgument, testing::_));
  for (const char* call : {"DevicePrimaryCtxRetain", "MemImportFromShareableHandle", "MemMap",
                           "StreamCreateWithPriority"}) {
    api_.FailCall(call, kCudaOutOfMemory);
    EXPECT_FALSE(memory_->OpenReader(descriptor_.get(), kBytes).ok()) << call;
  }
  ASSERT_OK_AND_ASSIGN(auto reader, memory_->OpenReader(descriptor_.get(), kBytes));
  api_.FailCall("MemcpyAsync", kCudaIllegalAddress);
  char byte = 'x';
  EXPECT_THAT(reader->Read(&byte, 0, 1),
              StatusIs(StatusCode::kInternal, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")));
  ASSERT_OK_AND_ASSIGN(auto next, memory_->OpenReader(descriptor_.get(), kBytes));
  EXPECT_OK(next->Read(&byte, 0, 1));
}

TEST(CudaDeviceMemoryTest, WantOfMemorySaysWhatForHowMuchAndWhatIsFree) {
  for (const bool needs_context : {false, true}) {
    SCOPED_TRACE(needs_context);
    FakeCudaApi::Options options;
    options.memory_bytes = 1 << 20;
    options.memory_needs_context = needs_context;
    FakeCudaApi api(options);
    {
      ASSERT_OK_AND_ASSIGN(const auto memory, CudaDeviceMemory::Create(&api, 0));
      const std::string before = api.Held();
      EXPECT_THAT(memory->Create("job/2/state", 2 << 20),
                  StatusIs(StatusCode::kResourceExhausted,
                           AllOf(HasSubstr("job/2/state: cuda:0: a region of 2097152 bytes"),
                                 HasSubstr("1048576 of 1048576 bytes are free"))));
      EXPECT_EQ(api.Held(), before);
      EXPECT_OK(memory->Create("job/2/state", 1 << 19)) << "what there is may be had";
      EXPECT_THAT(memory->Create("job/2/state", 0),
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr("job/2/state")));
    }
    EXPECT_EQ(api.Held(), "");
  }
}

TEST(CudaDeviceMemoryTest, DeviceThatNoRankCouldUseIsAnErrorByNameAtOnce) {
  FakeCudaApi api;
  EXPECT_THAT(CudaDeviceMemory::Create(&api, 7),
              StatusIs(StatusCode::kNotFound, HasSubstr("no cuda:7: there are 1 devices")));
  FakeCudaApi::Options options;
  options.num_devices = 0;
  FakeCudaApi none(options);
  EXPECT_THAT(CudaDeviceMemory::Create(&none, 0),
              StatusIs(StatusCode::kNotFound, HasSubstr("CUDA_ERROR_NO_DEVICE")));
  options = {};
  options.driver_version = 11080;
  FakeCudaApi old(options);
  EXPECT_THAT(CudaDeviceMemory::Create(&old, 0),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("serves CUDA 11.8, and CUDA ",
                                              LeastDriverVersion() / 1000, ".0 is needed"))));
  FakeCudaApi lost;
  lost.Break(kCudaDeviceUnavailable);
  EXPECT_THAT(CudaDeviceMemory::Create(&lost, 0),
              StatusIs(StatusCode::kUnavailable, HasSubstr("CUDA_ERROR_DEVICE_UNAVAILABLE")));
}

}  // namespace
}  // namespace tessera
