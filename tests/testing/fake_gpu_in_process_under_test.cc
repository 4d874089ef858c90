#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_under_test.h"

namespace tessera::testing_support {

absl::StatusOr<GpuUnderTest> FindGpuUnderTest() {
  return GpuUnderTest{MakeFakeGpuDevice, FakeGpuMemoryInProcess(),
                      "tests/testing/fake_gpu_executor",
                      absl::UnimplementedError("the fake of NCCL knows one process")};
}

}  // namespace tessera::testing_support
