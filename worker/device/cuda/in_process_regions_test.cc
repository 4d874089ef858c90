// Memory of a GPU whose driver passes none between processes: over a fake of such a driver.
#include "worker/device/cuda/in_process_regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_device_memory.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/cuda_rank_device.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytes = 100'000;

class InProcessRegionsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(placeholder_, CreatePlaceholder("job/0/parameters", kBytes));
  }
  void TearDown() override { EXPECT_EQ(api_.Held(), "") << "nothing is left of the device"; }
  absl::StatusOr<Buffer> Map(int64_t size_bytes = kBytes) {
    return MapPlaceholder(&api_, 0, placeholder_.get(), size_bytes);
  }

  FakeCudaApi api_;
  UniqueFd placeholder_;
};

TEST_F(InProcessRegionsTest, WhoMapsTheSameGetsTheSameUntilTheLastOfThemIsGone) {
  ASSERT_OK_AND_ASSIGN(Buffer first, Map());
  EXPECT_EQ(first.size_bytes(), kBytes);
  // A descriptor of the same, as another connection brings it.
  const UniqueFd sent(fcntl(placeholder_.get(), F_DUPFD_CLOEXEC, 0));
  ASSERT_OK_AND_ASSIGN(Buffer second, MapPlaceholder(&api_, 0, sent.get(), kBytes));
  EXPECT_EQ(second.data(), first.data());
  EXPECT_EQ(api_.num_calls("MemAlloc"), 1);
  ASSERT_OK_AND_ASSIGN(const UniqueFd other, CreatePlaceholder("job/0/parameters", kBytes));
  ASSERT_OK_AND_ASSIGN(const Buffer others, MapPlaceholder(&api_, 0, other.get(), kBytes));
  EXPECT_NE(others.data(), first.data()) << "of the same label";
  const void* const at = first.data();
  memset(first.data(), 7, kBytes);
  first.Reset();
  EXPECT_EQ(api_.num_calls("MemFree"), 0);
  EXPECT_EQ(second.data_as<char>()[kBytes - 1], 7);
  ASSERT_OK_AND_ASSIGN(const Buffer third, Map());
  EXPECT_EQ(third.data(), at);
  second.Reset();
  EXPECT_EQ(api_.num_calls("MemFree"), 0);
}

TEST_F(InProcessRegionsTest, MemoryOutlivesItsDescriptorsAndIsMadeAnewWhenAllIsGone) {
  const UniqueFd kept(fcntl(placeholder_.get(), F_DUPFD_CLOEXEC, 0));
  ASSERT_OK_AND_ASSIGN(Buffer first, Map());
  placeholder_.Reset();
  memset(first.data(), 7, kBytes);
  first.Reset();
  EXPECT_EQ(api_.num_calls("MemFree"), 1);
  ASSERT_OK_AND_ASSIGN(const Buffer second, MapPlaceholder(&api_, 0, kept.get(), kBytes));
  EXPECT_EQ(api_.num_calls("MemAlloc"), 2);
}

TEST_F(InProcessRegionsTest, WhatIsNoPlaceholderIsRefusedAndItsSizeIsNotTrusted) {
  EXPECT_TRUE(IsPlaceholder(placeholder_.get()));
  EXPECT_THAT(Map(kBytes + 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("of 100000 bytes")));
  EXPECT_THAT(Map(0), StatusIs(StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(CreatePlaceholder("job/0/parameters", 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("job/0/parameters")));
  {
    ASSERT_OK_AND_ASSIGN(const Buffer less, Map(kBytes / 2));
    EXPECT_THAT(Map(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("50000 bytes")));
  }
  ASSERT_OK(Map()) << "and all of it once nobody has less";
  // The same bytes, which somebody may still change.
  char content[64] = {};
  const ssize_t size = pread(placeholder_.get(), content, sizeof(content), 0);
  ASSERT_GT(size, 0);
  const UniqueFd open(memfd_create("tessera:job/0/parameters", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(write(open.get(), content, size), size);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int descriptor : {open.get(), nothing.get(), -1}) {
    EXPECT_FALSE(IsPlaceholder(descriptor));
    EXPECT_THAT(MapPlaceholder(&api_, 0, descriptor, 1),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("no placeholder")));
  }
  // A placeholder that claims to be larger than any memory costs no more than what is mapped of it.
  ASSERT_OK_AND_ASSIGN(const UniqueFd huge, CreatePlaceholder("huge", int64_t{1} << 62));
  ASSERT_OK_AND_ASSIGN(const Buffer little, MapPlaceholder(&api_, 0, huge.get(), 10));
  EXPECT_EQ(little.size_bytes(), 10);
  EXPECT_LT(pwrite(placeholder_.get(), content, size, 0), 0) << "nobody changes it";
}

TEST_F(InProcessRegionsTest, ErrorOfTheDeviceIsReturnedAndLeavesNothing) {
  api_.FailCall("MemAlloc", kCudaOutOfMemory);
  EXPECT_THAT(Map(), StatusIs(StatusCode::kResourceExhausted,
                              AllOf(HasSubstr("cuda:0"), HasSubstr("100000"))));
  EXPECT_EQ(api_.Held(), "");
  api_.FailCall("DevicePrimaryCtxRetain", kCudaOutOfMemory);
  EXPECT_THAT(Map(), StatusIs(StatusCode::kResourceExhausted, testing::_));
  EXPECT_EQ(api_.Held(), "");
  ASSERT_OK(Map());
}

TEST_F(InProcessRegionsTest, ThreadsThatMapAndUnmapAtOnceLeaveNothing) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        auto memory = Map();
        ASSERT_OK(memory);
        memory->data_as<std::atomic<char>>()[i] = static_cast<char>(round);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(api_.num_calls("MemAlloc"), api_.num_calls("MemFree"));
}

TEST_F(InProcessRegionsTest, DevicesOfOneProcessMapTheSameAndKnowIt) {
  ASSERT_OK_AND_ASSIGN(const auto trainers, CudaRankDevice::Create(&api_, 0));
  ASSERT_OK_AND_ASSIGN(const auto executors, CudaRankDevice::Create(&api_, 0));
  ASSERT_OK_AND_ASSIGN(const Buffer read,
                       trainers->MapRegion(placeholder_.get(), kBytes, /*writable=*/false));
  ASSERT_OK_AND_ASSIGN(const Buffer written,
                       executors->MapRegion(placeholder_.get(), kBytes, /*writable=*/true));
  EXPECT_EQ(read.data(), written.data());
  EXPECT_TRUE(trainers->IsOnDevice(read.data()));
  EXPECT_TRUE(executors->IsOnDevice(read.data_as<char>() + kBytes - 1));
  ASSERT_OK_AND_ASSIGN(const auto kernels, executors->CreateKernels({}));
  const std::string bytes(kBytes, 'x');
  kernels->Copy(written.data(), bytes.data(), kBytes);
  ASSERT_OK(kernels->Finish());
  EXPECT_EQ(memcmp(read.data(), bytes.data(), kBytes), 0);
}

struct Machine {
  std::string name, reason;
  FakeCudaApi::Options options;
};

class KeeperOfMachineTest : public testing::TestWithParam<Machine> {};

TEST_P(KeeperOfMachineTest, GivesNamesOfMemorySaysWhyInTheLogAndNeedsNothingOfTheDevice) {
  FakeCudaApi api(GetParam().options);
  SetLogContext("worker w");  // From here on lines go to standard error.
  testing::internal::CaptureStderr();
  auto made = CudaDeviceMemory::Create(&api, 0);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(made);
  DeviceMemory& memory = **made;
  EXPECT_THAT(log, AllOf(HasSubstr("worker w"), HasSubstr("memory of cuda:0 is each trainer's own"),
                         HasSubstr(GetParam().reason)));
  EXPECT_THAT(memory.why_not_shared(), HasSubstr(GetParam().reason));
  EXPECT_EQ(memory.device().number, 0);
  EXPECT_EQ(memory.device().uuid, FakeCudaApi::UuidOf(0));
  EXPECT_EQ(api.Held(), "");
  ASSERT_OK_AND_ASSIGN(const UniqueFd placeholder, memory.Create("job/parameters", kBytes));
  EXPECT_TRUE(IsPlaceholder(placeholder.get()));
  EXPECT_THAT(memory.OpenReader(placeholder.get(), kBytes),
              StatusIs(StatusCode::kUnimplemented, HasSubstr(GetParam().reason)));
  EXPECT_EQ(api.Held(), "");
  // A trainer's process on this machine can have it.
  {
    ASSERT_OK_AND_ASSIGN(const auto device, CudaRankDevice::Create(&api, memory.device()));
    ASSERT_OK(device->MapRegion(placeholder.get(), kBytes, /*writable=*/true));
  }
  EXPECT_EQ(api.Held(), "");
}

FakeCudaApi::Options OptionsWith(void (*change)(FakeCudaApi::Options*)) {
  FakeCudaApi::Options options;
  change(&options);
  return options;
}

INSTANTIATE_TEST_SUITE_P(
    Facts, KeeperOfMachineTest,
    testing::Values(Machine{"NoVirtualMemory", "the device has no virtual memory management",
                            OptionsWith([](auto* o) { o->memory_management = false; })},
                    Machine{"NoDescriptors", "the device's memory has no descriptors",
                            OptionsWith([](auto* o) { o->descriptors = false; })},
                    Machine{"ExportRefused", "descriptors do not work here: cuMemExport",
                            OptionsWith([](auto* o) { o->export_error = kCudaNotPermitted; })},
                    Machine{"ImportRefused", "descriptors do not work here: memory of another",
                            OptionsWith([](auto* o) { o->import_error = kCudaNotSupported; })}),
    [](const testing::TestParamInfo<Machine>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
