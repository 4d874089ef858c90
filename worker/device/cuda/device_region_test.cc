// Regions over a driver whose memory is memfds: what crosses processes really does.
#include "worker/device/cuda/device_region.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kGranularity = 64 << 10;

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class DeviceRegionTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(api_.Init()); }
  // A child process with a driver of its own; what it returns is its exit status.
  static int InAnotherProcess(const std::function<int()>& body) {
    const pid_t pid = fork();
    if (pid == 0) _exit(body());
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  FakeCudaApi api_;
  const SharingDevice device_ = {&api_, 0, nullptr};
};

TEST(RoundUpToGranularityTest, IsTheLeastMultipleThatHoldsItOrAnError) {
  struct {
    int64_t size, granularity, expected;
  } const cases[] = {{1, 8, 8}, {8, 8, 8}, {9, 8, 16}, {5, 1, 5}, {(5 << 20), (2 << 20), 6 << 20}};
  for (const auto& c : cases) {
    ASSERT_OK_AND_ASSIGN(const int64_t rounded, RoundUpToGranularity(c.size, c.granularity));
    EXPECT_EQ(rounded, c.expected) << c.size << " by " << c.granularity;
  }
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const auto& [size, granularity] :
       {std::pair<int64_t, int64_t>{0, 8}, {-1, 8}, {8, 0}, {kMax, 8}}) {
    EXPECT_THAT(RoundUpToGranularity(size, granularity),
                StatusIs(StatusCode::kInvalidArgument, testing::_));
  }
}

TEST_F(DeviceRegionTest, WhatOneProcessWritesAnotherReadsAndTheOtherWayRound) {
  ASSERT_OK_AND_ASSIGN(const DeviceRegion region, DeviceRegion::Create(device_, 100));
  EXPECT_EQ(region.size_bytes(), kGranularity);
  ASSERT_OK_AND_ASSIGN(const DeviceMapping mine, region.Map(CudaAccess::kReadWrite));
  ASSERT_OK_AND_ASSIGN(const UniqueFd descriptor, region.Export());
  std::strcpy(reinterpret_cast<char*>(mine.data()), "from the keeper");
  EXPECT_EQ(0, InAnotherProcess([&] {
              FakeCudaApi api;
              if (!api.Init().ok()) return 1;
              absl::StatusOr<DeviceMapping> theirs = DeviceMapping::Import(
                  {&api, 0, nullptr}, descriptor.get(), kGranularity, CudaAccess::kReadWrite);
              if (!theirs.ok()) return 2;
              char* text = reinterpret_cast<char*>(theirs->data());
              if (std::strcmp(text, "from the keeper") != 0) return 3;
              std::strcpy(text, "from the executor");
              return 0;
            }));
  EXPECT_STREQ(reinterpret_cast<char*>(mine.data()), "from the executor");
}

TEST_F(DeviceRegionTest, WriteThroughAReadOnlyMappingEndsTheProcess) {
  ASSERT_OK_AND_ASSIGN(const DeviceRegion region, DeviceRegion::Create(device_, 100));
  ASSERT_OK_AND_ASSIGN(const UniqueFd descriptor, region.Export());
  ASSERT_OK_AND_ASSIGN(
      const DeviceMapping mapping,
      DeviceMapping::Import(device_, descriptor.get(), kGranularity, CudaAccess::kRead));
  EXPECT_EQ(mapping.data()[0], std::byte{0});
  EXPECT_NE(0, InAnotherProcess([&] {
              mapping.data()[0] = std::byte{1};
              return 0;
            }));
  EXPECT_EQ(mapping.data()[0], std::byte{0});
}

TEST_F(DeviceRegionTest, MappingKeepsTheMemoryWhenItsOwnerIsGone) {
  DeviceMapping mapping;
  {
    ASSERT_OK_AND_ASSIGN(const DeviceRegion region, DeviceRegion::Create(device_, 100));
    ASSERT_OK_AND_ASSIGN(mapping, region.Map(CudaAccess::kReadWrite));
  }
  mapping.data()[kGranularity - 1] = std::byte{7};
  EXPECT_THAT(api_.Held(), HasSubstr("bytes=65536"));
  mapping.Reset();
  EXPECT_EQ(api_.Held(), "");
}

TEST_F(DeviceRegionTest, ThousandAttachmentsLeaveNothing) {
  ASSERT_OK_AND_ASSIGN(DeviceRegion region, DeviceRegion::Create(device_, 3 * kGranularity));
  const std::string held = api_.Held();
  const int descriptors = OpenDescriptors();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_OK_AND_ASSIGN(const UniqueFd descriptor, region.Export());
    ASSERT_OK_AND_ASSIGN(
        const DeviceMapping mapping,
        DeviceMapping::Import(device_, descriptor.get(), region.size_bytes(), CudaAccess::kRead));
  }
  EXPECT_EQ(api_.Held(), held);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  region.Reset();
  EXPECT_EQ(api_.Held(), "");
}

TEST_F(DeviceRegionTest, DescriptorOfSomethingElseIsRefused) {
  const UniqueFd other(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int descriptor : {other.get(), -1, 9999}) {
    EXPECT_THAT(DeviceMapping::Import(device_, descriptor, kGranularity, CudaAccess::kRead),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("memory of another process")));
  }
  EXPECT_EQ(api_.Held(), "");
}

TEST_F(DeviceRegionTest, SizeThatTheMemoryDoesNotHaveIsRefused) {
  ASSERT_OK_AND_ASSIGN(DeviceRegion region, DeviceRegion::Create(device_, kGranularity));
  ASSERT_OK_AND_ASSIGN(const UniqueFd descriptor, region.Export());
  for (int64_t size_bytes : {2 * kGranularity, kGranularity - 1, int64_t{0}, -kGranularity}) {
    EXPECT_THAT(DeviceMapping::Import(device_, descriptor.get(), size_bytes, CudaAccess::kRead),
                StatusIs(StatusCode::kInvalidArgument, testing::_))
        << size_bytes;
  }
  region.Reset();
  EXPECT_EQ(api_.Held(), "");
}

TEST_F(DeviceRegionTest, ErrorAtAnyCallIsReturnedAndLeavesNothing) {
  for (const char* call :
       {"MemGetAllocationGranularity", "MemCreate", "MemExportToShareableHandle",
        "MemImportFromShareableHandle", "MemAddressReserve", "MemMap", "MemSetAccess"}) {
    SCOPED_TRACE(call);
    api_.FailCall(call, kCudaOutOfMemory);
    const absl::Status status = [&]() -> absl::Status {
      absl::StatusOr<DeviceRegion> region = DeviceRegion::Create(device_, 1);
      if (!region.ok()) return region.status();
      absl::StatusOr<UniqueFd> descriptor = region->Export();
      if (!descriptor.ok()) return descriptor.status();
      return DeviceMapping::Import(device_, descriptor->get(), kGranularity, CudaAccess::kRead)
          .status();
    }();
    EXPECT_THAT(status, StatusIs(StatusCode::kResourceExhausted, HasSubstr(call)));
    EXPECT_EQ(api_.Held(), "");
  }
  EXPECT_THAT(DeviceRegion::Create(device_, int64_t{1} << 40),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("1099511627776 bytes")));
}

TEST(AllocateRegionTest, WantOfMemoryAtAnyCallNamesWhatWasWantedAndWhatIsFree) {
  FakeCudaApi api;
  ASSERT_OK_AND_ASSIGN(const auto context, PrimaryContext::Create(&api, 0, 0));
  const SharingDevice device = {&api, 0, context.get()};
  ASSERT_OK_AND_ASSIGN(const DeviceRegion region, DeviceRegion::Create(device, 1));
  ASSERT_OK_AND_ASSIGN(const UniqueFd descriptor, region.Export());
  const std::string before = api.Held();
  const auto told = [](const char* call, const char* free) {
    return StatusIs(StatusCode::kResourceExhausted,
                    AllOf(HasSubstr(call), HasSubstr("wanted 65536 bytes, "), HasSubstr(free)));
  };
  for (const char* call : {"MemCreate", "MemAddressReserve", "MemMap", "MemSetAccess"}) {
    api.FailCall(call, kCudaOutOfMemory);
    EXPECT_THAT(AllocateRegion(device, 1), told(call, "of 1073741824 bytes are free"));
    EXPECT_EQ(api.Held(), before) << call;
  }
  for (const char* call :
       {"MemImportFromShareableHandle", "MemAddressReserve", "MemMap", "MemSetAccess"}) {
    api.FailCall(call, kCudaOutOfMemory);
    EXPECT_THAT(DeviceMapping::Import(device, descriptor.get(), kGranularity, CudaAccess::kRead),
                told(call, "1073676288 of 1073741824 bytes are free"));
    EXPECT_EQ(api.Held(), before) << call;
  }
}

TEST(DeviceRegionRdmaTest, MemoryIsTheNetworksToReachWhereTheDeviceSaysThatItMayBe) {
  for (const bool may_be : {true, false}) {
    FakeCudaApi::Options options;
    options.gpu_direct_rdma = may_be;
    FakeCudaApi api(options);
    ASSERT_OK(api.Init());
    ASSERT_OK_AND_ASSIGN(const DeviceRegion region, DeviceRegion::Create({&api, 0, nullptr}, 1));
    EXPECT_EQ(api.num_for_rdma(), may_be ? 1 : 0);
  }
}

TEST(DeviceRegionRdmaTest, DriverThatRefusesItThenGivesOrdinaryMemoryAndWantIsTriedOnce) {
  FakeCudaApi::Options options;
  options.rdma_is_refused = true;
  FakeCudaApi api(options);
  ASSERT_OK(api.Init());
  ASSERT_OK_AND_ASSIGN(const DeviceRegion region, DeviceRegion::Create({&api, 0, nullptr}, 1));
  EXPECT_EQ(api.num_calls("MemCreate"), 2);
  EXPECT_EQ(api.num_for_rdma(), 0);
  api.FailCall("MemCreate", kCudaOutOfMemory);
  EXPECT_THAT(DeviceRegion::Create({&api, 0, nullptr}, 1),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
  EXPECT_EQ(api.num_calls("MemCreate"), 3);
}

}  // namespace
}  // namespace tessera
