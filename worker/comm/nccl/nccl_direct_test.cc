// Ranks that share a GPU: how they are detected, and that they are named before any rank joins.
#include "worker/comm/nccl/nccl_direct.h"

#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl/nccl_shared_gpu.h"
#include "worker/comm/nccl/nccl_test_group.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr int kOld = 22809;

class NcclPlaceTest : public testing::Test {
 protected:
  // Of the device with this number of a machine.
  static DirectPlace Place(int machines_number, int version = kOld, const NcclSharing& sharing = {},
                           bool parts_of_one_gpu = false) {
    FakeCudaApi::Options options;
    options.visible = {machines_number};
    options.parts_of_one_gpu = parts_of_one_gpu;
    FakeCudaApi cuda(options);
    EXPECT_OK(cuda.Init());
    const absl::StatusOr<DirectPlace> place = FindNcclPlace(&cuda, 0, version, sharing);
    EXPECT_OK(place);
    return place.value_or(DirectPlace());
  }
  static std::string Shared(const std::vector<DirectPlace>& places) {
    const auto shared = RanksOfOneDevice(places);
    return shared.has_value() ? DescribeShared(*shared, places) : "none";
  }
};

TEST_F(NcclPlaceTest, RanksOfOneGpuAreFoundByItsUuidAndNamed) {
  const std::string uuid = UuidText(FakeCudaApi::UuidOf(2));
  for (const int version : {kOld, kNcclSharedGpu}) {
    EXPECT_EQ(Shared({Place(0, version), Place(1, version), Place(2, version)}), "none");
    EXPECT_EQ(Shared({Place(0, version), Place(2, version), Place(1, version), Place(2, version)}),
              "ranks 1 and 3 are both on " + uuid + ": one rank of a GPU can join");
  }
  EXPECT_EQ(Shared({}), "none");
}

TEST_F(NcclPlaceTest, PartsOfOneGpuAreOneToOlderLibraries) {
  const auto part = [](int number, int version) {
    return Place(number, version, {}, /*parts_of_one_gpu=*/true);
  };
  EXPECT_THAT(Shared({part(0, kOld), part(1, kOld)}),
              AllOf(HasSubstr("ranks 0 and 1"), HasSubstr("parts of one GPU")));
  EXPECT_EQ(Shared({part(0, kNcclSharedGpu), part(1, kNcclSharedGpu)}), "none");
}

TEST_F(NcclPlaceTest, RanksThatNcclIsToldToJoinAreNotFound) {
  for (const int version : {kOld, kNcclSharedGpu}) {
    std::vector<DirectPlace> places;
    for (const std::string host : {"a", "b", "c"}) {
      NcclSharing sharing;
      for (const auto& [name, value] : SharedGpuEnvironment(host, version)) {
        if (name == "NCCL_HOSTID") sharing.host_id = value;
        if (name == "NCCL_MULTI_RANK_GPU_ENABLE") sharing.enabled = value == "1";
      }
      places.push_back(Place(0, version, sharing));
    }
    EXPECT_EQ(Shared(places), "none") << version;
  }
  NcclSharing one;
  one.host_id = "of both";
  EXPECT_THAT(Shared({Place(0, kOld, one), Place(0, kOld, one)}), HasSubstr("ranks 0 and 1"));
  NcclSharing enabled;
  enabled.enabled = true;
  EXPECT_THAT(Shared({Place(0, kOld, enabled), Place(0, kOld, enabled)}),
              HasSubstr("ranks 0 and 1"))
      << "this library knows no such setting";
}

TEST_F(NcclPlaceTest, ErrorOfTheDriverIsReturned) {
  for (const char* call : {"DeviceGetUuid", "DeviceGetPciBusId"}) {
    FakeCudaApi cuda;
    ASSERT_OK(cuda.Init());
    cuda.FailCall(call, kCudaDeviceUnavailable);
    EXPECT_THAT(FindNcclPlace(&cuda, 0, kOld, {}),
                StatusIs(StatusCode::kUnavailable, HasSubstr("DEVICE_UNAVAILABLE")));
  }
}

TEST_F(NcclPlaceTest, DuplicateDeviceIsAnErrorOnEveryRankThatNamesBothBeforeAnybodyJoins) {
  NcclTestOptions options;
  options.size = 3;
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    rank.options.place = Place(rank.rank == 0 ? 1 : 0);
    const absl::Status created = NcclCommunicator::Create(rank.options).status();
    RANK_EXPECT(rank.nccl->num_aborts() == 0, "it was never joined");
    return created;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.code(), AnyOf(StatusCode::kFailedPrecondition, StatusCode::kAborted));
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("ranks 1 and 2 are both on "),
                                                     HasSubstr(UuidText(FakeCudaApi::UuidOf(0)))));
  }
}

}  // namespace
}  // namespace tessera
