// The devices of this machine: its CPU, and its GPUs through the driver.
#ifndef TESSERA_WORKER_EXECUTOR_MACHINE_DEVICES_H_
#define TESSERA_WORKER_EXECUTOR_MACHINE_DEVICES_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/device_memory.h"
#include "worker/device/rank_device.h"

namespace tessera {

// A MakeRankDevice. Thread-safe.
absl::StatusOr<std::unique_ptr<RankDevice>> MakeMachineRankDevice(const DeviceName& device);

// What a keeper of a GPU's ranks makes their memory with. Says in the log how it is shared, or why
// it is not: see DeviceMemory::why_not_shared.
// Errors: as of MakeRankDevice
absl::StatusOr<std::shared_ptr<DeviceMemory>> MakeMachineDeviceMemory(const DeviceName& device);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_MACHINE_DEVICES_H_
