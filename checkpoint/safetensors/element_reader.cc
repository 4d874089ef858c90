#include "checkpoint/safetensors/element_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "checkpoint/storage/storage_of.h"
#include "kernels/kernels.h"

namespace tessera {
namespace {

// `from`: elements of `dtype`, a floating-point type.
template <typename Real>
void Convert(DType dtype, const char* from, absl::Span<Real> into) {
  const int64_t count = into.size();
  if (dtype == DType::kFp64) {
    // Aligned, because `from` is the beginning of an allocation.
    const auto* values = reinterpret_cast<const double*>(from);
    for (int64_t i = 0; i < count; ++i) into[i] = static_cast<Real>(values[i]);
    return;
  }
  std::vector<float> widened;
  const auto* values = reinterpret_cast<const float*>(from);
  if (IsHalf(dtype)) {
    widened.resize(count);
    host::CastHalfToFp32(dtype, reinterpret_cast<const uint16_t*>(from), widened.data(), count);
    values = widened.data();
  }
  for (int64_t i = 0; i < count; ++i) into[i] = static_cast<Real>(values[i]);
}

}  // namespace

void FileIdentity::MixWord(uint64_t word) {
  // No hash against attackers: it only has to notice a change.
  hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15;
  hash_ ^= hash_ >> 29;
}

void FileIdentity::MixBytes(absl::string_view bytes) {
  MixWord(bytes.size());
  for (const char c : bytes) MixWord(static_cast<unsigned char>(c));
}

absl::StatusOr<OpenFile> OpenRegularFile(const std::string& path) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  OpenFile file;
  ASSIGN_OR_RETURN(file.file, storage->OpenFile(path));
  file.path = path;
  file.size_bytes = file.file->size_bytes();
  const timespec changed_at = absl::ToTimespec(file.file->changed_at());
  FileIdentity changed;
  changed.MixWord(changed_at.tv_sec);
  changed.MixWord(changed_at.tv_nsec);
  file.changed = changed.value();
  return file;
}

absl::Status ReadBytes(const OpenFile& file, int64_t at_bytes, int64_t size_bytes, void* into) {
  return file.file->Read(at_bytes, size_bytes, into);
}

absl::StatusOr<std::string> ReadSmallFile(const OpenFile& file, int64_t max_bytes) {
  // Before it is allocated.
  if (file.size_bytes > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path, ": ", file.size_bytes, " bytes, more than the ", max_bytes, " that may be"));
  }
  std::string bytes(file.size_bytes, '\0');
  RETURN_IF_ERROR(ReadBytes(file, 0, file.size_bytes, bytes.data()));
  return bytes;
}

absl::Status ReadElements(const OpenFile& file, int64_t at_bytes, DType dtype, Values into) {
  // In the same dtype it is read to its place, without a copy.
  if (dtype == into.dtype()) return ReadBytes(file, at_bytes, into.size_bytes(), into.data());
  constexpr int64_t kPieceElements = 1 << 15;
  const int64_t count = into.size(), element_bytes = SizeBytes(dtype);
  std::vector<char> piece(std::min(count, kPieceElements) * element_bytes);
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = std::min(kPieceElements, count - begin);
    RETURN_IF_ERROR(ReadBytes(file, at_bytes, size * element_bytes, piece.data()));
    at_bytes += size * element_bytes;
    if (into.dtype() == DType::kFp64) {
      Convert(dtype, piece.data(), into.as<double>().subspan(begin, size));
    } else {
      Convert(dtype, piece.data(), into.as<float>().subspan(begin, size));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
