#include <unistd.h>

#include <climits>
#include <string>

#include "base/status_macros.h"
#include "tests/testing/gpu_under_test.h"
#include "worker/comm/nccl/nccl_api.h"
#include "worker/executor/machine_devices.h"

namespace tessera::testing_support {
namespace {

// Next to this program if both were built, or in the folder of programs next to that of checks.
std::string ExecutorBinary() {
  char path[PATH_MAX] = {};
  if (readlink("/proc/self/exe", path, sizeof(path) - 1) < 0) return "";
  std::string folder = path;
  folder.resize(folder.rfind('/'));
  const std::string bundled = folder + "/../bin/tessera-executor";
  return access(bundled.c_str(), X_OK) == 0 ? bundled : "worker/tessera-executor";
}

}  // namespace

absl::StatusOr<GpuUnderTest> FindGpuUnderTest() {
  GpuUnderTest gpu = {MakeMachineRankDevice, nullptr, ExecutorBinary()};
  const absl::StatusOr<NcclApi*> nccl = LoadNcclApi();
  gpu.nccl = nccl.status();
  if (nccl.ok()) (*nccl)->GetVersion(&gpu.nccl_version);
  ASSIGN_OR_RETURN(gpu.memory, MakeMachineDeviceMemory(0));
  return gpu;
}

}  // namespace tessera::testing_support
