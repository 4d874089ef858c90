#include "checkpoint/element_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "worker/device/host/kernels.h"

namespace tessera {
namespace {

// `from`: elements of `dtype`, a floating-point type.
template <typename Real>
void Convert(DType dtype, const char* from, absl::Span<Real> into) {
  const int64_t count = into.size();
  if (dtype == DType::kFp64) {
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
  hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15;
  hash_ ^= hash_ >> 29;
}

void FileIdentity::MixBytes(absl::string_view bytes) {
  MixWord(bytes.size());
  for (const char c : bytes) MixWord(static_cast<unsigned char>(c));
}

absl::StatusOr<OpenFile> OpenRegularFile(const std::string& path) {
  OpenFile file;
  file.path = path;
  file.fd.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(file.fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file"));
  file.size_bytes = info.st_size;
  FileIdentity changed;
  changed.MixWord(info.st_mtim.tv_sec);
  changed.MixWord(info.st_mtim.tv_nsec);
  file.changed = changed.value();
  return file;
}

absl::Status ReadBytes(const OpenFile& file, int64_t at_bytes, int64_t size_bytes, void* into) {
  char* data = static_cast<char*>(into);
  while (size_bytes > 0) {
    const ssize_t got = pread(file.fd.get(), data, size_bytes, at_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", file.path));
    if (got == 0) return absl::DataLossError(absl::StrCat(file.path, ": shorter than it was"));
    data += got;
    at_bytes += got;
    size_bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const OpenFile& file, int64_t max_bytes) {
  if (file.size_bytes > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path, ": ", file.size_bytes, " bytes, more than the ", max_bytes, " that may be"));
  }
  std::string bytes(file.size_bytes, '\0');
  RETURN_IF_ERROR(ReadBytes(file, 0, file.size_bytes, bytes.data()));
  return bytes;
}

absl::Status ReadElements(const OpenFile& file, int64_t at_bytes, DType dtype, Values into) {
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
