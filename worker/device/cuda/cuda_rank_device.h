// A GPU as what a rank works on: its keeper's memory, mapped, and kernels over it.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_RANK_DEVICE_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_RANK_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/cuda_backend.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/rank_device.h"

namespace tessera {

class CudaRankDevice : public RankDevice, public CudaBackend {
 public:
  // `api` outlives the device. Errors: those of FindCudaDevice, CudaDevice::Create
  static absl::StatusOr<std::unique_ptr<CudaRankDevice>> Create(CudaApi* api,
                                                                const DeviceName& device);

  absl::string_view name() const override { return device_->name(); }
  int number() const override { return device_->context()->device(); }
  bool is_separate() const override { return true; }
  absl::StatusOr<Buffer> MapRegion(int descriptor, int64_t size_bytes, bool writable) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<SharedEvent>> CreateSharedEvent() override;
  absl::StatusOr<std::unique_ptr<SharedEvent>> OpenSharedEvent(
      const SharedEventName& name) override;
  void PutGathersFirst() override { device_->PutGathersFirst(); }
  absl::StatusOr<Buffer> Pin(void* memory, int64_t size_bytes) override {
    return device_->Pin(memory, size_bytes);
  }
  absl::Status Synchronize() override;
  absl::StatusOr<std::unique_ptr<RankKernels>> CreateKernels(const KernelOptions& options) override;

  CudaDevice* cuda_device() override { return device_.get(); }
  absl::StatusOr<std::unique_ptr<SliceKernels>> CreateSliceKernels(int64_t max_count) override;

  // Whether the address is in memory that MapRegion or Allocate gave and that is still there.
  bool IsOnDevice(const void* address) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Whether an event was ever opened here: then one that cannot be has lost its maker.
  std::atomic<bool> opened_event_{false};
  // The same memory, known to IsOnDevice as long as it is there.
  Buffer Known(Buffer memory) ABSL_LOCKS_EXCLUDED(mu_);
  explicit CudaRankDevice(std::unique_ptr<CudaDevice> device) : device_(std::move(device)) {}

  const std::unique_ptr<CudaDevice> device_;
  mutable absl::Mutex mu_;
  std::map<uintptr_t, int64_t> regions_ ABSL_GUARDED_BY(mu_);  // Begin -> bytes.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_RANK_DEVICE_H_
