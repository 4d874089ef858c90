#include "worker/device/cuda/gpu_kernels.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/gpu_factors.h"
#include "worker/device/cuda/kernel_launch.h"

namespace tessera {
namespace {

// The kernels are compiled by nvcc without these headers, so numbers are repeated there.
static_assert(gpu::kNotBuilt == kCudaNotSupported);
static_assert(gpu::kMaxInputs == kMaxSlices);
static_assert(static_cast<int>(DType::kFp32) == 0 && static_cast<int>(DType::kBf16) == 1);
static_assert(static_cast<int>(DType::kFp16) == 2 && static_cast<int>(DType::kFp64) == 3);

static_assert(ElementType(Fp8Format::kE4M3).number() == gpu::kFp8E4M3);
static_assert(ElementType(Fp8Format::kE5M2).number() == gpu::kFp8E5M2);
static_assert(static_cast<int>(ReduceOp::kSum) == 0 && static_cast<int>(ReduceOp::kMax) == 1);

int Number(ElementType type) { return type.number(); }
bool IsSum(DType dtype) { return dtype == DType::kFp32 || dtype == DType::kFp64; }

absl::Status Launched(const char* kernel, int result) {
  return CudaStatus(absl::StrCat("kernel ", kernel), result);
}

gpu::Inputs InputsOf(absl::Span<const void* const> pointers) {
  gpu::Inputs inputs = {};
  inputs.count = static_cast<int>(pointers.size());
  std::copy(pointers.begin(), pointers.end(), inputs.at);
  return inputs;
}

absl::Status CheckInputs(const char* kernel, absl::Span<const void* const> inputs) {
  // Inputs are an array of fixed size among the arguments of the kernel.
  if (!inputs.empty() && inputs.size() <= kMaxSlices) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("kernel ", kernel, ": ", inputs.size(),
                                                 " inputs are not in [1, ", kMaxSlices, "]"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuKernels>> GpuKernels::Create(CudaDevice* device,
                                                               int64_t max_count) {
  if (max_count < 1) {
    return absl::InvalidArgumentError(absl::StrCat("kernels for ", max_count, " elements"));
  }
  // Once for all: nothing is allocated while the step runs.
  const int64_t room_bytes = gpu::MeasureRoom(max_count) * int64_t{sizeof(double)};
  ASSIGN_OR_RETURN(Buffer room, device->Allocate(room_bytes));
  RETURN_IF_ERROR(device->context()->Use());
  // Now: a kernel's first launch waits for all that runs on the device, NCCL's for a missing rank
  // included (docs/adr/0076).
  RETURN_IF_ERROR(Launched("(loading all of them)", gpu::LoadKernels()));
  return absl::WrapUnique(new GpuKernels(device, max_count, std::move(room)));
}

absl::Status GpuKernels::Check(const char* kernel, int64_t count,
                               std::initializer_list<const void*> pointers, bool dtypes_fit) const {
  const auto refuse = [kernel](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("kernel ", kernel, ": ", why));
  };
  // Refused here: the device would only report a fault, which ends the process.
  if (count < 0) return refuse(absl::StrCat(count, " elements"));
  if (!dtypes_fit) return refuse("it has no such dtype");
  for (const void* pointer : pointers) {
    if (pointer == nullptr && count > 0) return refuse("a pointer is null");
  }
  return Annotate(device_->context()->Use(), absl::StrCat("kernel ", kernel));
}

absl::Status GpuKernels::CheckMeasured(const char* kernel, int64_t count) const {
  if (count <= max_count_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("kernel ", kernel, ": ", count, " elements, and ", max_count_, " are the most"));
}

absl::Status GpuKernels::Reduce(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                                ElementType input, int64_t count, double scale, bool accumulate,
                                host::SumOutput output, host::GradientStats* stats) {
  RETURN_IF_ERROR(CheckInputs("Reduce", inputs));
  // fp64 is summed in fp64 only, and FP8 in fp32 only.
  const bool fits_fp32 = IsFloatingPoint(input) && input != DType::kFp64;
  const bool fits_fp64 = IsFloatingPoint(input) && !input.is_fp8();
  const bool fit =
      (output.dtype == DType::kFp32 && fits_fp32) || (output.dtype == DType::kFp64 && fits_fp64);
  RETURN_IF_ERROR(Check("Reduce", count, {inputs[0], output.data}, fit));
  gpu::Measuring measuring;
  if (stats != nullptr) {
    RETURN_IF_ERROR(CheckMeasured("Reduce", count));
    measuring = {measure_room_.data_as<double>(), &stats->sum_of_squares, &stats->non_finite};
  }
  // An empty grid is an error of the launch.
  if (count == 0) return absl::OkStatus();
  return Launched(
      "Reduce", gpu::LaunchReduce(stream, InputsOf(inputs), Number(input), count, scale, accumulate,
                                  Number(output.dtype), output.data, measuring));
}

absl::Status GpuKernels::Combine(CudaStreamHandle* stream, absl::Span<const void* const> inputs,
                                 ElementType type, ReduceOp op, double scale, int64_t count,
                                 void* output) {
  RETURN_IF_ERROR(CheckInputs("Combine", inputs));
  RETURN_IF_ERROR(Check("Combine", count, {inputs[0], output}, IsFloatingPoint(type)));
  if (count == 0) return absl::OkStatus();
  return Launched("Combine", gpu::LaunchCombine(stream, InputsOf(inputs), Number(type),
                                                static_cast<int>(op), scale, count, output));
}

absl::Status GpuKernels::Scale(CudaStreamHandle* stream, void* values, DType dtype, int64_t count,
                               double factor) {
  RETURN_IF_ERROR(Check("Scale", count, {values}, IsSum(dtype)));
  if (count == 0) return absl::OkStatus();
  return Launched("Scale", gpu::LaunchScale(stream, Number(dtype), values, count, factor));
}

absl::Status GpuKernels::Cast(CudaStreamHandle* stream, DType from_dtype, const void* from,
                              DType to_dtype, void* to, int64_t count, double scale) {
  const bool fit = IsFloatingPoint(from_dtype) && IsFloatingPoint(to_dtype);
  RETURN_IF_ERROR(Check("Cast", count, {from, to}, fit));
  if (count == 0) return absl::OkStatus();
  return Launched("Cast", gpu::LaunchCast(stream, Number(from_dtype), from, Number(to_dtype), to,
                                          count, scale));
}

absl::Status GpuKernels::CastToFp8(CudaStreamHandle* stream, DType from_dtype, const void* from,
                                   Fp8Format format, uint8_t* to, int64_t count, double scale) {
  RETURN_IF_ERROR(Check("CastToFp8", count, {from, to}, IsFloatingPoint(from_dtype)));
  if (count == 0) return absl::OkStatus();
  return Launched("CastToFp8", gpu::LaunchCastToFp8(stream, Number(from_dtype), from,
                                                    static_cast<int>(format), to, count, scale));
}

absl::Status GpuKernels::CastFromFp8(CudaStreamHandle* stream, Fp8Format format,
                                     const uint8_t* from, DType to_dtype, void* to, int64_t count,
                                     double scale) {
  RETURN_IF_ERROR(Check("CastFromFp8", count, {from, to}, IsFloatingPoint(to_dtype)));
  if (count == 0) return absl::OkStatus();
  return Launched("CastFromFp8", gpu::LaunchCastFromFp8(stream, static_cast<int>(format), from,
                                                        Number(to_dtype), to, count, scale));
}

absl::Status GpuKernels::MeasureNorm(const char* kernel, CudaStreamHandle* stream, DType dtype,
                                     const void* values, int64_t count, double p, double* sum,
                                     bool* non_finite) const {
  RETURN_IF_ERROR(Check(kernel, count, {values, sum}, IsSum(dtype)));
  RETURN_IF_ERROR(CheckMeasured(kernel, count));
  if (count == 0) return absl::OkStatus();
  return Launched(kernel, gpu::LaunchMeasure(stream, Number(dtype), values, count, p,
                                             measure_room_.data_as<double>(), sum, non_finite));
}

absl::Status GpuKernels::Measure(CudaStreamHandle* stream, DType dtype, const void* values,
                                 int64_t count, host::GradientStats* stats) {
  double* const sum = stats == nullptr ? nullptr : &stats->sum_of_squares;
  bool* const non_finite = stats == nullptr ? nullptr : &stats->non_finite;
  return MeasureNorm("Measure", stream, dtype, values, count, 2, sum, non_finite);
}

absl::Status GpuKernels::AddToNormPart(CudaStreamHandle* stream, DType dtype, const void* values,
                                       int64_t count, double p, double* part) {
  // Written so that a NaN is refused.
  if (!(p > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("kernel AddToNormPart: p is ", p));
  }
  return MeasureNorm("AddToNormPart", stream, dtype, values, count, p, part, nullptr);
}

absl::Status GpuKernels::RoundToHalf(CudaStreamHandle* stream, DType half_dtype, DType dtype,
                                     void* values, int64_t count) {
  RETURN_IF_ERROR(Check("RoundToHalf", count, {values}, IsHalf(half_dtype) && IsSum(dtype)));
  if (count == 0) return absl::OkStatus();
  return Launched("RoundToHalf",
                  gpu::LaunchRoundToHalf(stream, Number(half_dtype), Number(dtype), values, count));
}

template <typename Real>
absl::Status GpuKernels::Adam(CudaStreamHandle* stream, const host::AdamParams& params,
                              int64_t count, const Real* gradient, const Real* p_in,
                              const Real* m_in, const Real* v_in, Real* p_out, Real* m_out,
                              Real* v_out, Real* publish, host::HalfOutput publish_half) const {
  RETURN_IF_ERROR(Check("AdamStep", count, {gradient, p_in, m_in, v_in, p_out, m_out, v_out},
                        publish_half.to == nullptr || IsHalf(publish_half.dtype)));
  if (count == 0) return absl::OkStatus();
  return Launched("AdamStep",
                  gpu::LaunchAdam<Real>(stream, gpu::FactorsOf<Real>(params), count, gradient,
                                        {p_in,
                                         m_in,
                                         v_in,
                                         p_out,
                                         m_out,
                                         v_out,
                                         {publish, publish_half.to, Number(publish_half.dtype)}}));
}

template <typename Real>
absl::Status GpuKernels::Sgd(CudaStreamHandle* stream, const host::SgdParams& params, int64_t count,
                             const Real* gradient, const Real* p_in, const Real* momentum_in,
                             Real* p_out, Real* momentum_out, Real* publish,
                             host::HalfOutput publish_half) const {
  // What is not read or written may be null.
  const gpu::SgdFactors<Real> factors = gpu::FactorsOf<Real>(params);
  RETURN_IF_ERROR(Check("SgdStep", count,
                        {gradient, p_in, p_out, factors.read_momentum ? momentum_in : gradient,
                         factors.write_momentum ? momentum_out : p_out},
                        publish_half.to == nullptr || IsHalf(publish_half.dtype)));
  if (count == 0) return absl::OkStatus();
  return Launched(
      "SgdStep",
      gpu::LaunchSgd(stream, factors, count, gradient, p_in, momentum_in, p_out, momentum_out,
                     {publish, publish_half.to, Number(publish_half.dtype)}));
}

absl::Status GpuKernels::AdamStep(CudaStreamHandle* stream, const host::AdamParams& params,
                                  int64_t count, const float* gradient, const float* p_in,
                                  const float* m_in, const float* v_in, float* p_out, float* m_out,
                                  float* v_out, float* publish_fp32,
                                  host::HalfOutput publish_half) {
  return Adam(stream, params, count, gradient, p_in, m_in, v_in, p_out, m_out, v_out, publish_fp32,
              publish_half);
}

absl::Status GpuKernels::AdamStep(CudaStreamHandle* stream, const host::AdamParams& params,
                                  int64_t count, const double* gradient, const double* p_in,
                                  const double* m_in, const double* v_in, double* p_out,
                                  double* m_out, double* v_out, double* publish_fp64,
                                  host::HalfOutput publish_half) {
  return Adam(stream, params, count, gradient, p_in, m_in, v_in, p_out, m_out, v_out, publish_fp64,
              publish_half);
}

absl::Status GpuKernels::SgdStep(CudaStreamHandle* stream, const host::SgdParams& params,
                                 int64_t count, const float* gradient, const float* p_in,
                                 const float* momentum_in, float* p_out, float* momentum_out,
                                 float* publish_fp32, host::HalfOutput publish_half) {
  return Sgd(stream, params, count, gradient, p_in, momentum_in, p_out, momentum_out, publish_fp32,
             publish_half);
}

absl::Status GpuKernels::SgdStep(CudaStreamHandle* stream, const host::SgdParams& params,
                                 int64_t count, const double* gradient, const double* p_in,
                                 const double* momentum_in, double* p_out, double* momentum_out,
                                 double* publish_fp64, host::HalfOutput publish_half) {
  return Sgd(stream, params, count, gradient, p_in, momentum_in, p_out, momentum_out, publish_fp64,
             publish_half);
}

absl::Status GpuKernels::Fill(CudaStreamHandle* stream, DType dtype, void* values, int64_t count,
                              double value) {
  RETURN_IF_ERROR(Check("Fill", count, {values}, IsFloatingPoint(dtype)));
  if (count == 0) return absl::OkStatus();
  return Launched("Fill", gpu::LaunchFill(stream, Number(dtype), values, count, value));
}

absl::Status GpuKernels::Checksum(CudaStreamHandle* stream, DType dtype, const void* values,
                                  int64_t count, uint64_t* sum) {
  RETURN_IF_ERROR(Check("Checksum", count, {values, sum}, true));
  if (count == 0) return absl::OkStatus();
  return Launched("Checksum", gpu::LaunchChecksum(stream, values,
                                                  static_cast<int>(SizeBytes(dtype)), count, sum));
}

}  // namespace tessera
