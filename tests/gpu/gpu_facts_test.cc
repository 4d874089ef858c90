#include "tests/gpu/gpu_facts.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl/fake_nccl_api.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace gpu_check {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const absl::StatusOr<NcclApi*> kNoNccl = absl::NotFoundError("libnccl.so.2: no such file");
const MpsFinding kNoMps = {Mps::kNotRunning, "it is not there"};

TEST(GpuFactsTest, EachThingThatIsMissingIsNamedFirst) {
  FakeCudaApi::Options old, none;
  old.driver_version = 12090;
  none.num_devices = 0;
  FakeCudaApi old_driver(old), no_device(none), lost, not_to_be_had;
  lost.Break(kCudaDeviceUnavailable);
  not_to_be_had.FailCall("DevicePrimaryCtxRetain", kCudaDeviceUnavailable);
  const struct {
    absl::StatusOr<CudaApi*> api;
    int toolkit;
    const char* reason;
  } cases[] = {
      {&lost, 0, "this was built without CUDA"},
      {absl::NotFoundError("libcuda.so.1: no such file"), 13000, "no driver: libcuda.so.1"},
      {&old_driver, 13000, "driver too old: it serves CUDA 12.9, and CUDA 13.0 is needed"},
      {&no_device, 13000, "no device: cuInit: CUDA_ERROR_NO_DEVICE"},
      {&not_to_be_had, 13000, "device not to be had: cuda:0: cuDevicePrimaryCtxRetain"},
      {&lost, 13000, "driver not to be had: cuDriverGetVersion: CUDA_ERROR_DEVICE_UNAVAILABLE"},
  };
  for (const auto& c : cases) {
    const GpuFacts facts = FindGpu(c.api, kNoNccl, c.toolkit, "", kNoMps);
    EXPECT_THAT(std::string(facts.usable.message()), StartsWith(c.reason));
    EXPECT_THAT(Describe(facts), StartsWith("no usable GPU: "));
  }
  EXPECT_EQ(not_to_be_had.Held(), "");
}

// As one for CUDA 13.0 serves all of 13, and not 14.0; never older ones than this was built with.
TEST(GpuFactsTest, DriverServesEachToolkitOfItsMajorVersion) {
  FakeCudaApi::Options options;
  options.driver_version = LeastDriverVersion();
  FakeCudaApi api(options);
  EXPECT_OK(FindGpu(&api, kNoNccl, LeastDriverVersion() + 90, "", kNoMps).usable);
  EXPECT_FALSE(FindGpu(&api, kNoNccl, LeastDriverVersion() + 1000, "", kNoMps).usable.ok());
}

TEST(GpuFactsTest, UsableDeviceIsDescribedAndGivenBack) {
  FakeCudaApi api;
  FakeNcclWorld world;
  FakeNcclApi nccl(&world, &api);
  const GpuFacts facts = FindGpu(&api, &nccl, 13000, "NVRM version: 580.95\nGCC version: 12\n",
                                 {Mps::kRunning, "it is there"});
  ASSERT_OK(facts.usable);
  EXPECT_EQ(Describe(facts),
            "a fake of threads, 1 GiB; driver for CUDA 13.0; NCCL 2.28.9; MPS running");
  EXPECT_EQ(ToJson(facts).dump(),
            R"({"name":"a fake of threads","devices":1,"compute_capability":"9.0",)"
            R"("memory_bytes":1073741824,"driver":"NVRM version: 580.95","driver_cuda":"13.0",)"
            R"("built_with_cuda":"13.0","nccl":"2.28.9",)"
            R"("mps":{"verdict":"running","reason":"it is there"}})");
  EXPECT_EQ(api.Held(), "");
}

TEST(GpuFactsTest, WithoutNcclTheDeviceIsUsableAllTheSame) {
  FakeCudaApi api;
  const GpuFacts facts = FindGpu(&api, kNoNccl, 13000, "", kNoMps);
  EXPECT_OK(facts.usable);
  EXPECT_THAT(Describe(facts), HasSubstr("no NCCL: libnccl.so.2: no such file"));
  EXPECT_TRUE(ToJson(facts)["nccl"].is_null());
  EXPECT_TRUE(ToJson(facts)["driver"].is_null());
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
