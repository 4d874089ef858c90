#include "checkpoint/model_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/host/kernels.h"

namespace tessera {
namespace {

absl::Status ReadAll(int fd, char* data, int64_t size_bytes, int64_t at, const std::string& path) {
  while (size_bytes > 0) {
    const ssize_t got = pread(fd, data, size_bytes, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (got == 0) return absl::DataLossError(absl::StrCat(path, ": shorter than it was"));
    data += got;
    at += got;
    size_bytes -= got;
  }
  return absl::OkStatus();
}

// The size and the header, as bytes; less where the file is shorter than it says.
absl::StatusOr<std::string> ReadPrefix(int fd, int64_t file_bytes, const std::string& path) {
  std::string prefix(std::min<int64_t>(file_bytes, 8), '\0');
  RETURN_IF_ERROR(ReadAll(fd, prefix.data(), prefix.size(), 0, path));
  uint64_t header_bytes = 0;
  memcpy(&header_bytes, prefix.data(), prefix.size());
  header_bytes = std::min<uint64_t>(
      {header_bytes, kMaxHeaderBytes, static_cast<uint64_t>(file_bytes) - prefix.size()});
  prefix.resize(prefix.size() + header_bytes);
  RETURN_IF_ERROR(ReadAll(fd, prefix.data() + 8, header_bytes, 8, path));
  return prefix;
}

uint64_t IdentityOf(const std::string& prefix, const struct stat& info) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  };
  for (const char c : prefix) mix(static_cast<unsigned char>(c));
  mix(info.st_size);
  mix(info.st_mtim.tv_sec);
  mix(info.st_mtim.tv_nsec);
  return hash;
}

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

absl::StatusOr<ModelReader> ModelReader::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file"));
  ASSIGN_OR_RETURN(const std::string prefix, ReadPrefix(fd.get(), info.st_size, path));
  absl::StatusOr<SafetensorsHeader> header = DecodeHeader(prefix, info.st_size);
  if (!header.ok()) return Annotate(header.status(), path);
  return ModelReader(std::move(fd), path, *std::move(header), IdentityOf(prefix, info));
}

absl::Status ModelReader::ReadSlice(const std::string& tensor, int64_t begin_elements,
                                    Values into) const {
  const auto it = header_.tensors.find(tensor);
  if (it == header_.tensors.end())
    return absl::NotFoundError(absl::StrCat(path_, " has no tensor '", tensor, "'"));
  const StoredTensor& stored = it->second;
  const int64_t element_bytes = SizeBytes(stored.dtype);
  const int64_t numel = (stored.end_bytes - stored.begin_bytes) / element_bytes;
  const int64_t count = into.size();
  if (!IsFloatingPoint(stored.dtype) || begin_elements < 0 || begin_elements > numel ||
      count > numel - begin_elements) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": elements [", begin_elements, ", +",
                                                   count, ") of tensor '", tensor, "', ", numel,
                                                   " of ", Name(stored.dtype)));
  }
  int64_t at = header_.data_offset_bytes + stored.begin_bytes + begin_elements * element_bytes;
  if (stored.dtype == into.dtype())
    return ReadAll(fd_.get(), static_cast<char*>(into.data()), into.size_bytes(), at, path_);
  constexpr int64_t kPieceElements = 1 << 15;
  std::vector<char> piece(std::min(count, kPieceElements) * element_bytes);
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = std::min(kPieceElements, count - begin);
    RETURN_IF_ERROR(ReadAll(fd_.get(), piece.data(), size * element_bytes, at, path_));
    at += size * element_bytes;
    if (into.dtype() == DType::kFp64) {
      Convert(stored.dtype, piece.data(), into.as<double>().subspan(begin, size));
    } else {
      Convert(stored.dtype, piece.data(), into.as<float>().subspan(begin, size));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
