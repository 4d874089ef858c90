// Runs in builds with and without CUDA, on machines with and without a driver.
// TESSERA_CUDA_FOUND and TESSERA_NCCL_FOUND are what the build found; 0: nothing.
#include "worker/device/cuda/cuda_versions.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#if TESSERA_NCCL_FOUND
#include "nccl.h"
#endif

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(CudaVersionsTest, SaysWhatTheBuildFound) {
  const CudaVersions versions = QueryCudaVersions();
  EXPECT_EQ(versions.toolkit, TESSERA_CUDA_FOUND);
  EXPECT_EQ(versions.nccl, TESSERA_NCCL_FOUND);
  EXPECT_EQ(versions.runtime, TESSERA_CUDA_FOUND) << "the linked runtime is the toolkit's";
  const std::string text = Describe(versions);
  if (TESSERA_CUDA_FOUND == 0) {
    EXPECT_EQ(text, "built without CUDA");
  } else {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("built with CUDA ", TESSERA_CUDA_FOUND / 1000, ".")));
  }
}

TEST(CudaVersionsTest, MachineWithoutADriverHasNoDeviceAndAReason) {
  const CudaVersions versions = QueryCudaVersions();
  if (versions.toolkit == 0) {
    EXPECT_THAT(versions.driver_status, StatusIs(absl::StatusCode::kUnimplemented, testing::_));
  }
  if (versions.driver_status.ok()) {
    EXPECT_GT(versions.driver, 0);
    EXPECT_GT(versions.num_devices, 0);
    return;
  }
  EXPECT_EQ(versions.num_devices, 0);
  EXPECT_FALSE(versions.driver_status.message().empty());
  EXPECT_TRUE(absl::EndsWith(Describe(versions), versions.driver_status.message()));
}

TEST(CudaVersionsTest, AskedAgainItAnswersTheSame) {
  EXPECT_EQ(Describe(QueryCudaVersions()), Describe(QueryCudaVersions()));
}

TEST(CudaVersionsTest, LineNamesVersionsDevicesAndReason) {
  CudaVersions versions;
  versions.toolkit = 12040;
  versions.nccl = 22105;
  versions.driver = 13000;
  versions.num_devices = 1;
  EXPECT_EQ(Describe(versions),
            "built with CUDA 12.4 and NCCL 2.21.5; driver for CUDA 13.0, 1 device");
  versions.nccl = 0;
  versions.num_devices = 0;
  versions.driver_status = absl::FailedPreconditionError("cuInit: no CUDA-capable device (100)");
  EXPECT_EQ(Describe(versions),
            "built with CUDA 12.4; driver for CUDA 13.0, 0 devices: cuInit: no CUDA-capable "
            "device (100)");
  versions.driver = 0;
  versions.driver_status = absl::NotFoundError("libcuda.so.1: cannot open shared object file");
  EXPECT_EQ(Describe(versions),
            "built with CUDA 12.4; no driver: libcuda.so.1: cannot open shared object file");
}

#if TESSERA_NCCL_FOUND
TEST(CudaVersionsTest, LinkedNcclIsTheOneOfTheHeader) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(version, TESSERA_NCCL_FOUND);
}
#endif

}  // namespace
}  // namespace tessera
