// The device of tests of faults, with a fault of its own: the machine's GPU, or a fake one. A test
// links the one or the other implementation.
#ifndef TESSERA_TESTS_GPU_FAULT_DEVICE_H_
#define TESSERA_TESTS_GPU_FAULT_DEVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/rank_device.h"

namespace tessera {
namespace gpu_check {

// A MakeRankDevice: the host's, or that GPU.
absl::StatusOr<std::unique_ptr<RankDevice>> MakeFaultDevice(const DeviceName& device);

// Enqueues a kernel that writes where nothing is mapped: from then on all that this process does on
// the GPU fails. Errors: those of the launch
absl::Status WriteToUnmapped(CudaStreamHandle* stream);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_FAULT_DEVICE_H_
