// The passes over memory that a GPU rank makes; one function a kernel. What kernels/kernels.h does on
// the CPU, by the arithmetic of kernel_math.h, to the same bits.
//
// Each only enqueues on the stream: what it points to lives until the stream has run it. Pointers
// are addresses of the device. Counts are ELEMENTS. A count of 0 does nothing. Thread-safe, but for
// what measures: an object's measures run on one stream at a time, for they share its room.
//
// Errors of all: InvalidArgument  a negative count, a null pointer, a dtype that is not named
//                Unimplemented    built without nvcc, or not for this device
//                ResourceExhausted, Internal, Unavailable  see cuda_error.h
#ifndef TESSERA_WORKER_DEVICE_CUDA_GPU_KERNELS_H_
#define TESSERA_WORKER_DEVICE_CUDA_GPU_KERNELS_H_

#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "layout/element_type.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/slice_kernels.h"

namespace tessera {

class GpuKernels : public SliceKernels {
 public:
  // `device` outlives the kernels. What is measured in one pass has at most `max_count` elements.
  // Errors: InvalidArgument    max_count < 1
  //         those of CudaDevice::Allocate
  static absl::StatusOr<std::unique_ptr<GpuKernels>> Create(CudaDevice* device, int64_t max_count);

  absl::Status Reduce(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                      ElementType input, int64_t count, double scale, bool accumulate,
                      host::SumOutput output, host::GradientStats* stats) override;
  absl::Status Combine(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                       ElementType type, ReduceOp op, double scale, int64_t count,
                       void* output) override;
  // values[i] *= factor, rounded in the dtype: kFp32 or kFp64. The scale of clipping.
  absl::Status Scale(CudaStreamHandle* stream, void* values, DType dtype, int64_t count,
                     double factor);

  // to[i] = scale * from[i], rounded to nearest; any of fp32, bf16, fp16 and fp64. The product is
  // fp64 if `to_dtype` is, else fp32. The two do not overlap.
  absl::Status Cast(CudaStreamHandle* stream, DType from_dtype, const void* from, DType to_dtype,
                    void* to, int64_t count, double scale);
  // As Cast, to and from FP8, which is not a dtype of a job (see kernel_math.h).
  absl::Status CastToFp8(CudaStreamHandle* stream, DType from_dtype, const void* from,
                         Fp8Format format, uint8_t* to, int64_t count, double scale);
  absl::Status CastFromFp8(CudaStreamHandle* stream, Fp8Format format, const uint8_t* from,
                           DType to_dtype, void* to, int64_t count, double scale);
  // A parameter's gradient into its place in the flat gradient.
  absl::Status CopyIn(CudaStreamHandle* stream, DType from_dtype, const void* from, DType to_dtype,
                      void* to, int64_t count) {
    return Cast(stream, from_dtype, from, to_dtype, to, count, 1.0);
  }

  // The norm and the finite check in one pass: kFp32 or kFp64. Added to `stats`, in pinned memory.
  absl::Status Measure(CudaStreamHandle* stream, DType dtype, const void* values, int64_t count,
                       host::GradientStats* stats);
  // The part of a p-norm that these values are, kFp32 or kFp64, is added to `part`, in pinned
  // memory; by infinity it is the larger of the two. p > 0. As AddToNormPart of
  // kernels/norm_part.h, whose bits it has for p = 1, 2 and infinity; other powers may
  // differ by a unit in the last place each (see measured_sum.h).
  absl::Status AddToNormPart(CudaStreamHandle* stream, DType dtype, const void* values,
                             int64_t count, double p, double* part);

  // In place, as host::RoundToHalf: `half_dtype` is kBf16 or kFp16, `dtype`, of the values, kFp32
  // or kFp64.
  absl::Status RoundToHalf(CudaStreamHandle* stream, DType half_dtype, DType dtype, void* values,
                           int64_t count);

  // See host::AdamStep and host::SgdStep, on a shard of fp32 or of fp64.
  absl::Status AdamStep(CudaStreamHandle* stream, const host::AdamParams& params, int64_t count,
                        const float* gradient, const float* p_in, const float* m_in,
                        const float* v_in, float* p_out, float* m_out, float* v_out,
                        float* publish_fp32, host::HalfOutput publish_half);
  absl::Status AdamStep(CudaStreamHandle* stream, const host::AdamParams& params, int64_t count,
                        const double* gradient, const double* p_in, const double* m_in,
                        const double* v_in, double* p_out, double* m_out, double* v_out,
                        double* publish_fp64, host::HalfOutput publish_half);
  absl::Status SgdStep(CudaStreamHandle* stream, const host::SgdParams& params, int64_t count,
                       const float* gradient, const float* p_in, const float* momentum_in,
                       float* p_out, float* momentum_out, float* publish_fp32,
                       host::HalfOutput publish_half);
  absl::Status SgdStep(CudaStreamHandle* stream, const host::SgdParams& params, int64_t count,
                       const double* gradient, const double* p_in, const double* momentum_in,
                       double* p_out, double* momentum_out, double* publish_fp64,
                       host::HalfOutput publish_half);

  // Padding: each element becomes `value`.
  absl::Status Fill(CudaStreamHandle* stream, DType dtype, void* values, int64_t count,
                    double value);

  // Adds a checksum of the elements and their places (see kernel_math.h) to `sum`, in memory that
  // the device can address. Any dtype.
  absl::Status Checksum(CudaStreamHandle* stream, DType dtype, const void* values, int64_t count,
                        uint64_t* sum);

 private:
  template <typename Real>
  absl::Status Adam(CudaStreamHandle* stream, const host::AdamParams& params, int64_t count,
                    const Real* gradient, const Real* p_in, const Real* m_in, const Real* v_in,
                    Real* p_out, Real* m_out, Real* v_out, Real* publish,
                    host::HalfOutput publish_half) const;
  template <typename Real>
  absl::Status Sgd(CudaStreamHandle* stream, const host::SgdParams& params, int64_t count,
                   const Real* gradient, const Real* p_in, const Real* momentum_in, Real* p_out,
                   Real* momentum_out, Real* publish, host::HalfOutput publish_half) const;
  GpuKernels(CudaDevice* device, int64_t max_count, Buffer measure_room)
      : device_(device), max_count_(max_count), measure_room_(std::move(measure_room)) {}
  // Makes the device's context current, and says whether the arguments can be meant.
  absl::Status Check(const char* kernel, int64_t count, std::initializer_list<const void*> pointers,
                     bool dtypes_fit) const;
  absl::Status CheckMeasured(const char* kernel, int64_t count) const;
  absl::Status MeasureNorm(const char* kernel, CudaStreamHandle* stream, DType dtype,
                           const void* values, int64_t count, double p, double* sum,
                           bool* non_finite) const;

  CudaDevice* const device_;
  const int64_t max_count_;
  const Buffer measure_room_;  // See gpu::MeasureRoom.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_GPU_KERNELS_H_
