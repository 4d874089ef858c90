// The host as a rank's device: memory files, mapped.
#ifndef TESSERA_WORKER_DEVICE_HOST_HOST_RANK_DEVICE_H_
#define TESSERA_WORKER_DEVICE_HOST_HOST_RANK_DEVICE_H_

#include <memory>

#include "worker/device/rank_device.h"

namespace tessera {

class HostRankDevice : public RankDevice {
 public:
  absl::string_view name() const override { return "host"; }
  bool is_separate() const override { return false; }
  absl::StatusOr<Buffer> MapRegion(int descriptor, int64_t size_bytes, bool writable) override;
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<RankKernels>> CreateKernels(const KernelOptions& options) override;
};

// Errors: Unimplemented  `device` is a GPU
absl::StatusOr<std::unique_ptr<RankDevice>> MakeHostRankDevice(const DeviceName& device);

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_HOST_HOST_RANK_DEVICE_H_
