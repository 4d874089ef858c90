// The memory of a FakeCudaApi: a budget of bytes, physical memory in memfds, reserved addresses.
// Errors are CUDA's numbers. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_MEMORY_H_
#define TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

class FakeCudaMemory {
 public:
  FakeCudaMemory(int64_t total_bytes, int64_t granularity_bytes)
      : total_bytes_(total_bytes), granularity_bytes_(granularity_bytes) {}
  ~FakeCudaMemory();

  // Takes from the budget, or gives back. False: there is not as much.
  bool Take(int64_t size_bytes);
  void Give(int64_t size_bytes) { used_bytes_ -= size_bytes; }
  int64_t free_bytes() const { return total_bytes_ - used_bytes_; }

  int Create(int64_t size_bytes, CudaMemHandle* handle) ABSL_LOCKS_EXCLUDED(mu_);
  int Release(CudaMemHandle handle) ABSL_LOCKS_EXCLUDED(mu_);
  int Export(CudaMemHandle handle, UniqueFd* descriptor) ABSL_LOCKS_EXCLUDED(mu_);
  int Import(int descriptor, CudaMemHandle* handle) ABSL_LOCKS_EXCLUDED(mu_);
  int Reserve(int64_t size_bytes, int64_t alignment_bytes, CudaAddress* address)
      ABSL_LOCKS_EXCLUDED(mu_);
  int FreeAddress(CudaAddress address, int64_t size_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  int Map(CudaAddress address, int64_t size_bytes, CudaMemHandle handle) ABSL_LOCKS_EXCLUDED(mu_);
  int Unmap(CudaAddress address, int64_t size_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  int SetAccess(CudaAddress address, int64_t size_bytes, CudaAccess access)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Whether these are whole granules of one mapping.
  bool IsMapped(CudaAddress address, int64_t size_bytes) const ABSL_LOCKS_EXCLUDED(mu_);

  // "handles=1 mappings=2 reservations=1 bytes=65536"; empty when nothing is held.
  std::string Held() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Gives its bytes back when the last handle and mapping of this process is gone.
  struct Physical {
    FakeCudaMemory* owner = nullptr;
    UniqueFd memory;
    int64_t size_bytes = 0;
    bool counted = false;  // What was imported counts where it was created.
    ~Physical();
  };
  struct Reservation {
    int64_t size_bytes = 0;
    std::shared_ptr<Physical> mapped;
    int64_t mapped_bytes = 0;
  };
  bool IsGranular(int64_t size_bytes) const {
    return size_bytes > 0 && size_bytes % granularity_bytes_ == 0;
  }

  const int64_t total_bytes_;
  const int64_t granularity_bytes_;
  std::atomic<int64_t> used_bytes_{0};
  mutable absl::Mutex mu_;
  CudaMemHandle next_handle_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<CudaMemHandle, std::shared_ptr<Physical>> handles_ ABSL_GUARDED_BY(mu_);
  std::map<CudaAddress, Reservation> reservations_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_MEMORY_H_
