// RankKernels of a GPU whose memory has all of the rank's state: one stream, in the order of calls.
//
// Copies between the device and host memory that is not pinned are made by the driver in pieces:
// slower, with the same result.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_RANK_KERNELS_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_RANK_KERNELS_H_

#include <memory>

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/cuda_stream.h"
#include "worker/device/cuda/gpu_kernels.h"
#include "worker/device/rank_kernels.h"

namespace tessera {

class CudaRankKernels : public RankKernels {
 public:
  // `device` outlives the kernels. At most `max_count` elements are measured at once. `stream` is
  // the name of theirs.
  // Errors: ResourceExhausted  no stream or memory is left.  Internal, Unavailable
  static absl::StatusOr<std::unique_ptr<CudaRankKernels>> Create(
      CudaDevice* device, int64_t max_count, absl::string_view stream = "rank-kernels");
  ~CudaRankKernels() override;

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
  void Record(SharedEvent* event) override;
  void WaitForStream(void* stream) override;
  absl::Status Finish() override;
  absl::Status TakeStats(host::GradientStats* stats) override;
  absl::StatusOr<double> TakeNormPart() override;
  Stream* stream() const { return stream_.get(); }
  // Not pinned where that much cannot be: copies are slower then, and mean the same.
  absl::StatusOr<Buffer> AllocateOnHost(int64_t size_bytes) override;

 private:
  explicit CudaRankKernels(CudaDevice* device) : device_(device) {}
  // An error of a launch is one of the device, which keeps its first.
  void Note(const absl::Status& status);
  CudaStreamHandle* handle() const { return static_cast<CudaStream*>(stream_.get())->handle(); }

  CudaDevice* const device_;
  std::unique_ptr<GpuKernels> kernels_;
  struct Measures {
    host::GradientStats stats;
    double norm_part = 0;
  };
  Measures* measures() const { return measures_.data_as<Measures>(); }
  Buffer measures_;                       // Pinned.
  std::unique_ptr<Event> others_stream_;  // Of WaitForStream.
  std::unique_ptr<Stream> stream_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_RANK_KERNELS_H_
