// The host as a rank's device.
#include "worker/device/host/host_rank_device.h"

#include <unistd.h>

#include <utility>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "shm/region.h"
#include "worker/device/rank_kernels_conformance.h"

namespace tessera {
namespace {

using testing::HasSubstr;

absl::StatusOr<RankKernelsBackend::Made> MakeHost() {
  RankKernelsBackend::Made made;
  ASSIGN_OR_RETURN(made.device, MakeHostRankDevice(kHostDevice));
  ASSIGN_OR_RETURN(SharedRegion region,
                   SharedRegion::Create("test", RankKernelsBackend::kRegionBytes));
  made.region = std::move(region).TakeFd();
  return made;
}

INSTANTIATE_TEST_SUITE_P(Host, RankKernelsConformanceTest,
                         testing::Values(RankKernelsBackend{"Host", false, MakeHost}));

TEST(HostRankDeviceTest, MapsWhatOthersMadeAndRefusesWhatIsLessByTheBytesThereAre) {
  HostRankDevice device;
  ASSERT_OK_AND_ASSIGN(const SharedRegion region, SharedRegion::Create("test", 8192));
  ASSERT_OK_AND_ASSIGN(const Buffer writer, device.MapRegion(region.fd(), 5000, true));
  ASSERT_OK_AND_ASSIGN(const Buffer reader, device.MapRegion(region.fd(), 8192, false));
  EXPECT_EQ(writer.size_bytes(), 8192);
  writer.data_as<char>()[4999] = 'x';
  EXPECT_EQ(reader.data_as<char>()[4999], 'x');
  EXPECT_DEATH({ *reader.data_as<volatile char>() = 'x'; }, "");
  EXPECT_THAT(device.MapRegion(region.fd(), 8193, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8192 bytes of 8193")));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  EXPECT_FALSE(device.MapRegion(read_end.get(), 1, false).ok()) << "no memory";
  EXPECT_FALSE(device.MapRegion(-1, 1, false).ok());
}

TEST(HostRankDeviceTest, IsTheOnlyDeviceOfAProgramThatHasNoOther) {
  HostRankDevice device;
  EXPECT_EQ(device.name(), "host");
  EXPECT_FALSE(device.is_separate());
  EXPECT_THAT(MakeHostRankDevice(3),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no GPU 3")));
}

}  // namespace
}  // namespace tessera
