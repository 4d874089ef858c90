#include "worker/keeper/put_stage.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "job/field_limits.h"
#include "job/job_codec.h"
#include "job/live_array_codec.h"
#include "kernels/kernels.h"

namespace tessera {
namespace {

// Elements in the dtypes of the wire and of the state; bytes have no alignment.
// A value is copied out first: bytes on the wire may be at any address.
template <typename From, typename To>
void Cast(absl::string_view bytes, To* into) {
  for (size_t i = 0; i < bytes.size() / sizeof(From); ++i) {
    From value;
    memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    into[i] = static_cast<To>(value);
  }
}

template <typename To>
void Widen(DType from, absl::string_view bytes, To* into) {
  constexpr size_t kPiece = 1024;
  uint16_t halves[kPiece];
  float widened[kPiece];
  const size_t count = bytes.size() / sizeof(uint16_t);
  for (size_t at = 0; at < count; at += kPiece) {
    const size_t size = std::min(kPiece, count - at);
    memcpy(halves, bytes.data() + at * sizeof(uint16_t), size * sizeof(uint16_t));
    host::CastHalfToFp32(from, halves, widened, static_cast<int64_t>(size));
    std::copy_n(widened, size, into + at);
  }
}

void Convert(DType from, absl::string_view bytes, DType to, std::string* out) {
  // The counts were checked: bytes are a whole number of elements.
  out->resize(bytes.size() / SizeBytes(from) * SizeBytes(to));
  if (to == DType::kFp64) {
    auto* into = reinterpret_cast<double*>(out->data());
    return from == DType::kFp32 ? Cast<float>(bytes, into) : Widen(from, bytes, into);
  }
  auto* into = reinterpret_cast<float*>(out->data());
  return from == DType::kFp64 ? Cast<double>(bytes, into) : Widen(from, bytes, into);
}

}  // namespace

absl::StatusOr<PutStage::Slot> PutStage::BufferSlotOf(const ModelLayout& layout,
                                                      const v1::PutSlot& from) {
  const int buffer = from.job_parameter();
  if (buffer < 0 || buffer >= static_cast<int>(layout.buffers.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer ", buffer, " does not exist; there are ", layout.buffers.size()));
  }
  Slot slot;
  slot.tensor.job_parameter = buffer;
  slot.tensor.array = LiveArray::kBuffer;
  slot.element_bytes = SizeBits(layout.buffers[buffer].dtype) / 8;
  slot.kept_bytes = slot.element_bytes;
  return slot;
}

absl::StatusOr<std::unique_ptr<PutStage>> PutStage::Create(const JobRegions& regions,
                                                           const v1::PutStage& request,
                                                           const std::string& spool_folder) {
  // 0 means none in the group page.
  if (request.put() == 0) return absl::InvalidArgumentError("a put without a number");
  RETURN_IF_ERROR(regions.CheckHasValues());
  const ModelLayout& layout = regions.layout();
  const ParameterNumbers numbers(layout);
  std::vector<Slot> slots;
  std::vector<LiveTensor> tensors;
  v1::PutManifest manifest;
  for (const v1::PutSlot& from : request.slots()) {
    if (from.array() == v1::LIVE_STATE_ARRAY_BUFFER) {
      ASSIGN_OR_RETURN(const Slot slot, BufferSlotOf(layout, from));
      tensors.push_back(slot.tensor);
      slots.push_back(slot);
      continue;
    }
    Slot slot;
    // The client's words, through the coordinator. Each is refused if the job has no such thing.
    ASSIGN_OR_RETURN(const LiveArray array, DecodeLiveArray(from.array()));
    ASSIGN_OR_RETURN(slot.tensor,
                     numbers.TensorOf(from.job_parameter(), array, regions.config().optimizer));
    ASSIGN_OR_RETURN(slot.comes_in, DecodeDType(from.dtype()));
    if (!IsPutDType(slot.comes_in)) {
      return absl::InvalidArgumentError(absl::StrCat("elements of ", Name(slot.comes_in),
                                                     " for parameter ", from.job_parameter()));
    }
    slot.kept_in = layout.units[slot.tensor.unit].full_dtype();
    slot.element_bytes = SizeBytes(slot.comes_in);
    slot.kept_bytes = SizeBytes(slot.kept_in);
    // Moments need to know how many updates made them, or the next update would be scaled wrongly.
    if (array != LiveArray::kParameter) {
      RETURN_IF_ERROR(CheckRange("count of updates", from.update_count(), 0,
                                 std::numeric_limits<int32_t>::max()));
      (*manifest.mutable_update_counts())[from.job_parameter()] = from.update_count();
    }
    tensors.push_back(slot.tensor);
    slots.push_back(slot);
  }
  std::vector<HeldRange> ranges;
  int64_t size_bytes = 0;
  const LocalRanks& local = regions.local();
  RETURN_IF_ERROR(ForEachHeldRange(layout, tensors, local.first(), local.first() + local.count(),
                                   [&](const HeldRange& range) {
                                     ranges.push_back(range);
                                     size_bytes += range.numel * slots[range.tensor].kept_bytes;
                                     return absl::OkStatus();
                                   }));
  // The room is taken now, so that a full disk refuses the put before anything is sent.
  ASSIGN_OR_RETURN(SpoolFile file, SpoolFile::Create(spool_folder, size_bytes));
  std::unique_ptr<PutStage> stage(new PutStage(request.put(), std::move(file)));
  stage->slots_ = std::move(slots);
  stage->ranges_ = std::move(ranges);
  stage->manifest_ = std::move(manifest);
  return stage;
}

absl::Status PutStage::Take(const v1::LivePiece& piece) {
  const absl::Status refusal =
      absl::InvalidArgumentError("elements that do not follow those before them");
  if (next_range_ == ranges_.size() || piece.data().empty()) return refusal;
  const HeldRange& range = ranges_[next_range_];
  const Slot& slot = slots_[range.tensor];
  const auto size_bytes = static_cast<int64_t>(piece.data().size());
  const int64_t count = size_bytes / slot.element_bytes;
  // Size, place and order are the sender's words. Each is checked before it is used.
  if (piece.data().size() > kMaxPieceBytes || size_bytes % slot.element_bytes != 0 ||
      piece.offset_elements() != range.begin_elements + done_elements_ ||
      count > range.numel - done_elements_) {
    return refusal;
  }
  // Converted before it is stored: the executor then copies and converts nothing in its step.
  absl::string_view bytes = piece.data();
  if (slot.comes_in != slot.kept_in) {
    Convert(slot.comes_in, bytes, slot.kept_in, &converted_);
    bytes = converted_;
  }
  if (done_elements_ == 0) {
    v1::PutManifest::Range* stored = manifest_.add_ranges();
    stored->set_job_parameter(slot.tensor.job_parameter);
    stored->set_array(static_cast<int>(slot.tensor.array));
    stored->set_begin_elements(range.begin_elements);
    stored->set_numel(range.numel);
    // Ranges are appended, so each begins where the file ends now.
    stored->set_offset_bytes(file_.size_bytes());
    stored->set_crc32(kCrc32OfNothing);
  }
  v1::PutManifest::Range* stored = manifest_.mutable_ranges(manifest_.ranges_size() - 1);
  // Continued over the pieces of a range: the executor checks the whole range at once.
  stored->set_crc32(Crc32(bytes.data(), bytes.size(), stored->crc32()));
  RETURN_IF_ERROR(file_.Append(bytes.data(), static_cast<int64_t>(bytes.size())));
  done_elements_ += count;
  if (done_elements_ < range.numel) return absl::OkStatus();
  ++next_range_;
  done_elements_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StagedPut>> PutStage::Seal() {
  if (next_range_ != ranges_.size()) return absl::InvalidArgumentError("elements are missing");
  const std::string manifest = manifest_.SerializeAsString();
  const int64_t offset_bytes = file_.size_bytes();
  const auto size_bytes = static_cast<int64_t>(manifest.size());
  // The manifest comes last, so that a file that is not complete has none.
  RETURN_IF_ERROR(file_.Append(manifest.data(), size_bytes));
  return std::make_shared<const StagedPut>(
      StagedPut{put_, std::move(file_), offset_bytes, size_bytes});
}

}  // namespace tessera
