#include "worker/device/cuda/offloaded_rank_kernels.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// What is published at once: long enough for the bus, short enough for the second-level cache.
constexpr int64_t kPieceElements = int64_t{64} << 10;
constexpr int64_t kHalfBytes = kPieceElements * static_cast<int64_t>(sizeof(double));

template <typename Byte>
Byte* At(Byte* array, int64_t offset_bytes) {
  return array == nullptr ? nullptr : array + offset_bytes;
}

// Elements [begin, begin + count) of all of them, published nowhere.
UpdateArrays PieceOf(const UpdateArrays& arrays, int64_t begin, int64_t count) {
  const int64_t offset = begin * SizeBytes(arrays.dtype);
  const auto in = [&](const void* array) {
    return At(static_cast<const std::byte*>(array), offset);
  };
  const auto out = [&](void* array) { return At(static_cast<std::byte*>(array), offset); };
  UpdateArrays piece = {arrays.dtype,     count,           in(arrays.gradient), in(arrays.p_in),
                        in(arrays.m_in),  in(arrays.v_in), out(arrays.p_out),   out(arrays.m_out),
                        out(arrays.v_out)};
  return piece;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OffloadedRankKernels>> OffloadedRankKernels::Create(
    CudaDevice* device, int64_t max_count, absl::string_view stream, IsOnDevice is_on_device) {
  auto kernels = absl::WrapUnique(new OffloadedRankKernels(device, std::move(is_on_device)));
  ASSIGN_OR_RETURN(kernels->device_kernels_, CudaRankKernels::Create(device, max_count, stream));
  // Pinned: only such copies run while the host fills the other half.
  ASSIGN_OR_RETURN(kernels->halves_, device->AllocatePinned(2 * kHalfBytes));
  for (std::unique_ptr<Event>& copied : kernels->copied_) {
    ASSIGN_OR_RETURN(copied, device->CreateEvent());
  }
  return kernels;
}

void OffloadedRankKernels::Copy(void* to, const void* from, int64_t size_bytes) {
  // In order with the device's stream.
  if (is_on_device_(to) || is_on_device_(from)) {
    device_kernels_->Copy(to, from, size_bytes);
  } else {
    host_kernels_.Copy(to, from, size_bytes);
  }
}

void OffloadedRankKernels::Clear(void* at, int64_t size_bytes) {
  if (is_on_device_(at)) {
    device_kernels_->Clear(at, size_bytes);
  } else {
    host_kernels_.Clear(at, size_bytes);
  }
}

template <typename Fill>
void OffloadedRankKernels::Publish(void* to, int64_t size_bytes, Fill fill) {
  Event* copied = copied_[next_half_].get();
  // The copy of two pieces ago: this half is free then.
  copied->Synchronize();
  std::byte* half = halves_.data_as<std::byte>() + next_half_ * kHalfBytes;
  fill(half);
  // It runs while the host fills the other half.
  device_kernels_->Copy(to, half, size_bytes);
  device_kernels_->stream()->Record(copied);
  next_half_ = 1 - next_half_;
}

template <typename Step>
void OffloadedRankKernels::InPieces(const UpdateArrays& arrays, Step step) {
  for (int64_t begin = 0; begin < arrays.count; begin += kPieceElements) {
    UpdateArrays piece = PieceOf(arrays, begin, std::min(kPieceElements, arrays.count - begin));
    if (arrays.publish_full != nullptr) {
      const int64_t offset = begin * SizeBytes(arrays.dtype);
      Publish(static_cast<std::byte*>(arrays.publish_full) + offset,
              piece.count * SizeBytes(arrays.dtype), [&](std::byte* half) {
                piece.publish_full = half;
                step(piece);
              });
    } else if (arrays.publish_half.to != nullptr) {
      Publish(arrays.publish_half.to + begin, piece.count * SizeBytes(arrays.publish_half.dtype),
              [&](std::byte* half) {
                piece.publish_half = {reinterpret_cast<uint16_t*>(half), arrays.publish_half.dtype};
                step(piece);
              });
    } else {
      step(piece);
    }
  }
}

void OffloadedRankKernels::AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) {
  InPieces(arrays, [&](const UpdateArrays& piece) { host_kernels_.AdamStep(params, piece); });
}

void OffloadedRankKernels::SgdStep(const host::SgdParams& params, const UpdateArrays& arrays) {
  InPieces(arrays, [&](const UpdateArrays& piece) { host_kernels_.SgdStep(params, piece); });
}

void OffloadedRankKernels::CastToHalf(ConstValues from, host::HalfOutput to) {
  const int64_t total = static_cast<int64_t>(from.size());
  for (int64_t begin = 0; begin < total; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, total - begin);
    Publish(to.to + begin, count * SizeBytes(to.dtype), [&](std::byte* half) {
      host_kernels_.CastToHalf(from.Part(begin, count),
                               {reinterpret_cast<uint16_t*>(half), to.dtype});
    });
  }
}

void OffloadedRankKernels::RoundToHalf(DType half, Values values) {
  (void)Finish();  // The values may still be on their way. Its error is the next Finish's, too.
  host_kernels_.RoundToHalf(half, values);
}

void OffloadedRankKernels::Reduce(absl::Span<const void* const> inputs, DType input_dtype,
                                  int64_t count, double scale, bool accumulate,
                                  host::SumOutput output, bool measure) {
  const int64_t size_bytes = count * SizeBytes(output.dtype);
  // Grows, and never shrinks: the largest unit decides.
  if (scratch_.size_bytes() < size_bytes) {
    (void)device_kernels_->Finish();  // It may still be read.
    scratch_.Reset();
    absl::StatusOr<Buffer> larger = device_->Allocate(size_bytes);
    if (!larger.ok()) {
      // The next Finish returns it: kernels that are enqueued have no status of their own.
      first_error_.Update(larger.status());
      return;
    }
    scratch_ = *std::move(larger);
  }
  // The reduced gradient is the host's. The device adds to a copy of it.
  if (accumulate) device_kernels_->Copy(scratch_.data(), output.data, size_bytes);
  device_kernels_->Reduce(inputs, input_dtype, count, scale, accumulate,
                          {scratch_.data(), output.dtype}, measure);
  // After the sum, since both are in one stream.
  device_kernels_->Copy(output.data, scratch_.data(), size_bytes);
}

void OffloadedRankKernels::Measure(ConstValues gradient) {
  // What is measured may still be on its way from the device.
  (void)Finish();
  host_kernels_.Measure(gradient);
}

void OffloadedRankKernels::AddToNormPart(ConstValues gradient, double p) {
  (void)Finish();
  host_kernels_.AddToNormPart(gradient, p);
}

absl::Status OffloadedRankKernels::Finish() {
  RETURN_IF_ERROR(device_kernels_->Finish());
  return first_error_;
}

absl::StatusOr<double> OffloadedRankKernels::TakeNormPart() {
  RETURN_IF_ERROR(Finish());
  return host_kernels_.TakeNormPart();
}

absl::Status OffloadedRankKernels::TakeStats(host::GradientStats* stats) {
  RETURN_IF_ERROR(Finish());
  host::GradientStats on_device, on_host;
  RETURN_IF_ERROR(device_kernels_->TakeStats(&on_device));
  RETURN_IF_ERROR(host_kernels_.TakeStats(&on_host));
  stats->sum_of_squares = on_device.sum_of_squares + on_host.sum_of_squares;
  stats->non_finite = on_device.non_finite || on_host.non_finite;
  return absl::OkStatus();
}

}  // namespace tessera
