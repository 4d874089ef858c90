#include <memory>

#include "tests/testing/fake_gpu.h"
#include "tests/testing/fake_nccl.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera::testing_support {

absl::StatusOr<GpuUnderTest> FindGpuUnderTest() {
  GpuUnderTest gpu = {MakeFakeGpuDevice, FakeGpuMemory(), "tests/testing/fake_gpu_executor",
                      absl::UnimplementedError("the fake of NCCL knows one process")};
  gpu.nccl_of_threads = [nccl = std::make_shared<FakeNccl>()](RankDevice* device) {
    return nccl->Make(device);
  };
  return gpu;
}

}  // namespace tessera::testing_support
