// A GPU's memory as a keeper makes it, of which a test looks at every region: by the checksums of
// its contents, which the GPU's own kernel computes, so that whole shards are compared without a
// copy of them. Thread-safe.
#ifndef TESSERA_TESTS_GPU_WATCHED_MEMORY_H_
#define TESSERA_TESTS_GPU_WATCHED_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/device_memory.h"
#include "worker/device/rank_device.h"

namespace tessera {
namespace gpu_check {

class WatchedMemory : public DeviceMemory {
 public:
  explicit WatchedMemory(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}

  DeviceName device() const override { return memory_->device(); }
  std::string why_not_shared() const override { return memory_->why_not_shared(); }
  absl::StatusOr<UniqueFd> Create(const std::string& label, int64_t size_bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<MemoryReader>> OpenReader(int descriptor,
                                                           int64_t size_bytes) override {
    return memory_->OpenReader(descriptor, size_bytes);
  }

  // Of each region that was made, by its label: "toy/parameters", "toy/0/state". `device` is that
  // GPU. Errors: those of the device
  using Checksums = std::map<std::string, uint64_t>;
  absl::StatusOr<Checksums> All(RankDevice* device) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of each array that a version of a rank's state has, alone: "toy/0/state 1" is its first moment.
  absl::StatusOr<Checksums> States(RankDevice* device, int64_t step) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Region {
    UniqueFd fd;
    int64_t size_bytes;
  };
  const std::shared_ptr<DeviceMemory> memory_;
  mutable absl::Mutex mu_;
  std::map<std::string, Region> regions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_WATCHED_MEMORY_H_
