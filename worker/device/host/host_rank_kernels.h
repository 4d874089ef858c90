// RankKernels of ranks in host memory: each call does its work at once, and fails only for invalid
// arguments. Thread-compatible.
#ifndef TESSERA_WORKER_DEVICE_HOST_HOST_RANK_KERNELS_H_
#define TESSERA_WORKER_DEVICE_HOST_HOST_RANK_KERNELS_H_

#include "worker/device/rank_kernels.h"

namespace tessera {

class HostRankKernels : public RankKernels {
 public:
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
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status TakeStats(host::GradientStats* stats) override;
  absl::StatusOr<double> TakeNormPart() override;
  absl::StatusOr<Buffer> AllocateOnHost(int64_t size_bytes) override;

 private:
  void Add(const host::GradientStats& measured);

  host::GradientStats stats_;
  double norm_part_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_HOST_HOST_RANK_KERNELS_H_
