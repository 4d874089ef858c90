// RankKernels of a rank that computes on a GPU and whose state is in host memory.
//
//   gradients on the GPU ──sum──► scratch there ──copy──► reduced gradient
//   optimizer on the CPU ──► state ──► pinned, two halves ──copy──► parameters on the GPU
//
// The optimizer and what is published of it overlap: one half is filled while the other is copied.
#ifndef TESSERA_WORKER_DEVICE_CUDA_OFFLOADED_RANK_KERNELS_H_
#define TESSERA_WORKER_DEVICE_CUDA_OFFLOADED_RANK_KERNELS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "worker/device/cuda/cuda_rank_kernels.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {

class OffloadedRankKernels : public RankKernels {
 public:
  // Whether an address is of the device. Thread-safe.
  using IsOnDevice = std::function<bool(const void* address)>;
  // `device` outlives the kernels. At most `max_count` elements are summed at once. `stream` is
  // the name of theirs.
  // Errors: ResourceExhausted  no stream or memory is left.  Internal, Unavailable
  static absl::StatusOr<std::unique_ptr<OffloadedRankKernels>> Create(CudaDevice* device,
                                                                      int64_t max_count,
                                                                      absl::string_view stream,
                                                                      IsOnDevice is_on_device);

  void Copy(void* to, const void* from, int64_t size_bytes) override;
  void Clear(void* at, int64_t size_bytes) override;
  void AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) override;
  void SgdStep(const host::SgdParams& params, const UpdateArrays& arrays) override;
  void CastToHalf(ConstValues from, host::HalfOutput to) override;
  void RoundToHalf(DType half, Values values) override;
  void Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count, double scale,
              bool accumulate, host::SumOutput output, bool measure) override;
  void Measure(ConstValues gradient) override;
  void AddToNormPart(ConstValues gradient, double p) override;
  void Record(SharedEvent* event) override { device_kernels_->Record(event); }
  void WaitForStream(void* stream) override { device_kernels_->WaitForStream(stream); }
  absl::Status Finish() override;
  absl::Status TakeStats(host::GradientStats* stats) override;
  absl::StatusOr<double> TakeNormPart() override;
  absl::StatusOr<Buffer> AllocateOnHost(int64_t size_bytes) override {
    return device_kernels_->AllocateOnHost(size_bytes);
  }

 private:
  OffloadedRankKernels(CudaDevice* device, IsOnDevice is_on_device)
      : is_on_device_(std::move(is_on_device)), device_(device) {}
  // Runs `step` on pieces whose published values go by way of a half.
  template <typename Step>
  void InPieces(const UpdateArrays& arrays, Step step);
  // Writes `size_bytes` by `fill` into a half whose last copy is done, and copies them to `to`.
  template <typename Fill>
  void Publish(void* to, int64_t size_bytes, Fill fill);

  const IsOnDevice is_on_device_;
  HostRankKernels host_kernels_;
  std::unique_ptr<CudaRankKernels> device_kernels_;
  CudaDevice* const device_;
  absl::Status first_error_;  // In addition to the device kernels'.
  Buffer scratch_;            // On the device: a sum. As large as one was yet.
  Buffer halves_;             // Pinned.
  std::unique_ptr<Event> copied_[2];
  int next_half_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_OFFLOADED_RANK_KERNELS_H_
