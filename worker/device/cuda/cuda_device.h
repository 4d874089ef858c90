// A GPU as a Device: its primary context, memory of it, streams and events over it, and pinned
// host memory for parameters, gradients and optimizer state that are offloaded.
//
// Failed work is not reported: check status() before publishing results. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_DEVICE_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_DEVICE_H_

#include <atomic>
#include <memory>

#include "worker/device/cuda/cuda_context.h"
#include "worker/device/device.h"

namespace tessera {

// What a stream of this name is created with: 0, or -1 (more urgent) for the streams that gather
// and reduce-scatter in a hybrid job whose gathers are limited, so that they go before its
// all-reduces. Within `range`.
int StreamPriority(absl::string_view name, bool gathers_go_first, CudaPriorityRange range);

class CudaDevice : public Device {
 public:
  struct Options {
    int device = 0;  // As CUDA numbers them.
    int min_driver_version = LeastDriverVersion();
  };
  // `api` outlives the device.
  // Errors: those of PrimaryContext::Create
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(CudaApi* api, const Options& options);

  // The errors of these name the device. ResourceExhausted of memory also names the bytes that
  // were wanted and that are free. After any error all is as it was before.
  // Besides those of Device: Internal, Unavailable  see cuda_error.h
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;

  // Host memory that copies run from and to without a stop. As Allocate.
  absl::StatusOr<Buffer> AllocatePinned(int64_t size_bytes);
  // Makes such of the caller's memory, until what is returned goes. Errors: also AlreadyExists
  absl::StatusOr<Buffer> Pin(void* memory, int64_t size_bytes);

  // For streams that are created from now on; see StreamPriority.
  void PutGathersFirst() { gathers_go_first_ = true; }
  int PriorityOf(absl::string_view stream) const {
    return StreamPriority(stream, gathers_go_first_, priorities_);
  }

  absl::string_view name() const override { return context_->name(); }
  void Copy(Stream* stream, void* dst, const void* src, int64_t size_bytes) override;
  void Fill(Stream* stream, void* dst, uint8_t value, int64_t size_bytes) override;

  // The first error of any stream, event or buffer; OK while there is none.
  absl::Status status() const { return context_->status(); }
  PrimaryContext* context() const { return context_.get(); }

 private:
  CudaDevice(std::unique_ptr<PrimaryContext> context, CudaPriorityRange priorities)
      : context_(std::move(context)), priorities_(priorities) {}
  absl::Status OutOfMemory(const absl::Status& status, int64_t size_bytes) const;

  const std::unique_ptr<PrimaryContext> context_;
  const CudaPriorityRange priorities_;
  std::atomic<bool> gathers_go_first_{false};
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_DEVICE_H_
