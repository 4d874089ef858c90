// An in-process fake GPU: FakeCudaApi, and loops of the host for kernels. Memory that
// one process makes of it is mapped by others that have one, too.
#ifndef TESSERA_TESTS_TESTING_FAKE_GPU_H_
#define TESSERA_TESTS_TESTING_FAKE_GPU_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/cuda/fake_cuda_api.h"
#include "worker/device/device_memory.h"
#include "worker/device/rank_device.h"

namespace tessera::testing_support {

// The process's only one; never destroyed. Thread-safe.
FakeCudaApi* FakeGpu();
// A MakeRankDevice: the host, or that GPU.
absl::StatusOr<std::unique_ptr<RankDevice>> MakeFakeGpuDevice(const DeviceName& device);
// Of device 0; null and a failed check where it cannot be made.
std::shared_ptr<DeviceMemory> FakeGpuMemory();
// The same where the worker's driver passes no memory between processes. Trainers that host their
// executors need it of none, and have their memory of FakeGpu().
std::shared_ptr<DeviceMemory> FakeGpuMemoryInProcess();

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_FAKE_GPU_H_
