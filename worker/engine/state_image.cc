#include "worker/engine/state_image.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"

namespace tessera {

StateImage::StateImage(const JobMemory* plan, OptimizerKind optimizer, std::byte* state)
    : plan_(plan),
      arrays_(MomentsOf(optimizer)),
      state_(state),
      array_bytes_(plan->StateOffsetBytes(StateArray::kParameter, 1)) {
  arrays_.insert(arrays_.begin(), StateArray::kParameter);
}

std::byte* StateImage::Array(StateArray array) const {
  return image_.data_as<std::byte>() + static_cast<int>(array) * array_bytes_;
}

// Once: an image stays reserved, so only the first save can fail for want of memory.
absl::Status StateImage::Reserve(RankKernels* kernels) {
  if (!image_.empty()) return absl::OkStatus();
  absl::StatusOr<Buffer> image = absl::ResourceExhaustedError("injected");
  if (FaultPoint("image.reserve").ok()) image = kernels->AllocateOnHost(size_bytes());
  if (absl::IsResourceExhausted(image.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no host memory for ", size_bytes(), " bytes of the state: ", image.status().message()));
  }
  RETURN_IF_ERROR(image.status());
  image_ = *std::move(image);
  return absl::OkStatus();
}

absl::Status StateImage::Pull(int version, RankKernels* kernels) {
  for (const StateArray array : arrays_)
    kernels->Copy(Array(array), state_ + plan_->StateOffsetBytes(array, version), array_bytes_);
  // Until then the copies may still be under way.
  return kernels->Finish();
}

void StateImage::Clear() { memset(image_.data(), 0, image_.size_bytes()); }

absl::Status StateImage::Push(int version, RankKernels* kernels) {
  for (const StateArray array : arrays_)
    kernels->Copy(state_ + plan_->StateOffsetBytes(array, version), Array(array), array_bytes_);
  return kernels->Finish();
}

Values StateImage::At(StateArray array, const ShardSegment& segment) const {
  return {Array(array) + segment.state_begin_elements * SizeBytes(segment.dtype), segment.numel,
          segment.dtype};
}

}  // namespace tessera
