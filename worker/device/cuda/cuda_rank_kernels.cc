#include "worker/device/cuda/cuda_rank_kernels.h"

#include <new>
#include <utility>

#include "absl/memory/memory.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/device/cuda/cuda_shared_event.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {
namespace {

template <typename Real>
absl::Status Adam(GpuKernels* kernels, CudaStreamHandle* stream, const host::AdamParams& params,
                  const UpdateArrays& a) {
  const auto in = [](const void* array) { return static_cast<const Real*>(array); };
  const auto out = [](void* array) { return static_cast<Real*>(array); };
  return kernels->AdamStep(stream, params, a.count, in(a.gradient), in(a.p_in), in(a.m_in),
                           in(a.v_in), out(a.p_out), out(a.m_out), out(a.v_out),
                           out(a.publish_full), a.publish_half);
}

template <typename Real>
absl::Status Sgd(GpuKernels* kernels, CudaStreamHandle* stream, const host::SgdParams& params,
                 const UpdateArrays& a) {
  const auto in = [](const void* array) { return static_cast<const Real*>(array); };
  const auto out = [](void* array) { return static_cast<Real*>(array); };
  return kernels->SgdStep(stream, params, a.count, in(a.gradient), in(a.p_in), in(a.m_in),
                          out(a.p_out), out(a.m_out), out(a.publish_full), a.publish_half);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaRankKernels>> CudaRankKernels::Create(CudaDevice* device,
                                                                         int64_t max_count,
                                                                         absl::string_view stream) {
  auto kernels = absl::WrapUnique(new CudaRankKernels(device));
  ASSIGN_OR_RETURN(kernels->kernels_, GpuKernels::Create(device, max_count));
  // Pinned: kernels of the device write the measures by themselves.
  ASSIGN_OR_RETURN(kernels->measures_, device->AllocatePinned(sizeof(Measures)));
  new (kernels->measures_.data()) Measures();
  ASSIGN_OR_RETURN(kernels->others_stream_, device->CreateEvent());
  ASSIGN_OR_RETURN(kernels->stream_, device->CreateStream(stream));
  return kernels;
}

CudaRankKernels::~CudaRankKernels() {
  // Kernels that are under way write to measures_, which goes next.
  if (stream_ != nullptr) stream_->Synchronize();
}

// A refused launch is the device's error, as one that fails later: the next Finish returns it.
void CudaRankKernels::Note(const absl::Status& status) { device_->context()->Check(status); }

void CudaRankKernels::Copy(void* to, const void* from, int64_t size_bytes) {
  device_->Copy(stream_.get(), to, from, size_bytes);
}

void CudaRankKernels::Clear(void* at, int64_t size_bytes) {
  device_->Fill(stream_.get(), at, 0, size_bytes);
}

void CudaRankKernels::AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) {
  Note(arrays.dtype == DType::kFp64 ? Adam<double>(kernels_.get(), handle(), params, arrays)
                                    : Adam<float>(kernels_.get(), handle(), params, arrays));
}

void CudaRankKernels::SgdStep(const host::SgdParams& params, const UpdateArrays& arrays) {
  Note(arrays.dtype == DType::kFp64 ? Sgd<double>(kernels_.get(), handle(), params, arrays)
                                    : Sgd<float>(kernels_.get(), handle(), params, arrays));
}

void CudaRankKernels::CastToHalf(ConstValues from, host::HalfOutput to) {
  Note(kernels_->Cast(handle(), from.dtype(), from.data(), to.dtype, to.to,
                      static_cast<int64_t>(from.size()), 1.0));
}

void CudaRankKernels::RoundToHalf(DType half, Values values) {
  Note(kernels_->RoundToHalf(handle(), half, values.dtype(), values.data(),
                             static_cast<int64_t>(values.size())));
}

void CudaRankKernels::Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count,
                             double scale, bool accumulate, host::SumOutput output, bool measure) {
  Note(kernels_->Reduce(handle(), inputs, input_dtype, count, scale, accumulate, output,
                        measure ? &measures()->stats : nullptr));
}

void CudaRankKernels::Measure(ConstValues gradient) {
  Note(kernels_->Measure(handle(), gradient.dtype(), gradient.data(),
                         static_cast<int64_t>(gradient.size()), &measures()->stats));
}

void CudaRankKernels::AddToNormPart(ConstValues gradient, double p) {
  Note(kernels_->AddToNormPart(handle(), gradient.dtype(), gradient.data(),
                               static_cast<int64_t>(gradient.size()), p, &measures()->norm_part));
}

void CudaRankKernels::Record(SharedEvent* event) {
  PrimaryContext* context = device_->context();
  if (!context->Check(context->Use())) return;
  Note(context->api()->EventRecord(static_cast<CudaSharedEvent*>(event)->handle(), handle()));
}

void CudaRankKernels::WaitForStream(void* stream) {
  PrimaryContext* context = device_->context();
  if (!context->Check(context->Use())) return;
  // One event is enough: a later record does not move waits that were issued before.
  Note(context->api()->EventRecord(static_cast<CudaEvent*>(others_stream_.get())->handle(),
                                   static_cast<CudaStreamHandle*>(stream)));
  stream_->Wait(others_stream_.get());
}

absl::Status CudaRankKernels::Finish() {
  stream_->Synchronize();
  return device_->status();
}

absl::Status CudaRankKernels::TakeStats(host::GradientStats* stats) {
  // Only then are the measures those of all that was called.
  RETURN_IF_ERROR(Finish());
  *stats = std::exchange(measures()->stats, host::GradientStats());
  return absl::OkStatus();
}

absl::StatusOr<Buffer> CudaRankKernels::AllocateOnHost(int64_t size_bytes) {
  absl::StatusOr<Buffer> pinned = device_->AllocatePinned(size_bytes);
  if (!absl::IsResourceExhausted(pinned.status())) return pinned;
  // Slower, but right: the driver stages pageable memory.
  TESSERA_LOG(WARNING, "{}: copies will be slow", pinned.status().ToString());
  return HostRankKernels().AllocateOnHost(size_bytes);
}

absl::StatusOr<double> CudaRankKernels::TakeNormPart() {
  RETURN_IF_ERROR(Finish());
  return std::exchange(measures()->norm_part, 0.0);
}

}  // namespace tessera
