#include "worker/storage/model_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

std::string PartialPath(const std::string& path) { return path + ".partial"; }

absl::Status WriteAll(int fd, const char* data, int64_t size_bytes, int64_t at,
                      const std::string& path) {
  RETURN_IF_ERROR(FaultPoint("model-file.write"));
  while (size_bytes > 0) {
    const ssize_t written = pwrite(fd, data, size_bytes, at);
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("write ", path));
    }
    data += written;
    at += written;
    size_bytes -= written;
  }
  return absl::OkStatus();
}

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

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open folder ", folder));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync folder ", folder));
  return absl::OkStatus();
}

}  // namespace

absl::Status ModelFile::Create(const std::string& path, const SafetensorsHeader& header) {
  if (path.empty() || path[0] != '/' || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("model file '", path, "' is no absolute file path"));
  }
  const std::string partial = PartialPath(path);
  UniqueFd fd(open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", partial));
  if (const int error = posix_fallocate(fd.get(), 0, header.file_bytes); error != 0) {
    return ErrnoStatus(error, absl::StrCat("reserve ", header.file_bytes, " bytes for ", partial));
  }
  const std::string bytes = EncodeHeader(header);
  return WriteAll(fd.get(), bytes.data(), bytes.size(), 0, partial);
}

absl::StatusOr<ModelFile> ModelFile::Open(const std::string& path,
                                          const SafetensorsHeader& header) {
  const std::string partial = PartialPath(path);
  UniqueFd fd(open(partial.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", partial));
  return ModelFile(std::move(fd), partial, &header);
}

absl::Status ModelFile::WriteSlice(const std::string& tensor, int64_t begin_elements,
                                   ConstValues values) {
  const auto it = header_->tensors.find(tensor);
  if (it == header_->tensors.end()) {
    return absl::NotFoundError(absl::StrCat(path_, " has no tensor '", tensor, "'"));
  }
  const StoredTensor& stored = it->second;
  const int64_t element_bytes = SizeBytes(stored.dtype);
  const int64_t numel = (stored.end_bytes - stored.begin_bytes) / element_bytes;
  if (stored.dtype != values.dtype() || begin_elements < 0 || begin_elements > numel ||
      static_cast<int64_t>(values.size()) > numel - begin_elements) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": elements [", begin_elements, ", +",
                                                   values.size(), ") of ", Name(values.dtype()),
                                                   " are not in tensor '", tensor, "'"));
  }
  return WriteAll(fd_.get(), static_cast<const char*>(values.data()), values.size_bytes(),
                  header_->data_offset_bytes + stored.begin_bytes + begin_elements * element_bytes,
                  path_);
}

absl::Status ModelFile::Sync() {
  if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync ", path_));
  return absl::OkStatus();
}

absl::Status ModelFile::Publish(const std::string& path) {
  RETURN_IF_ERROR(FaultPoint("model-file.publish"));
  if (rename(PartialPath(path).c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename to ", path));
  }
  return SyncFolderOf(path);
}

void ModelFile::Discard(const std::string& path) { unlink(PartialPath(path).c_str()); }

absl::StatusOr<std::vector<LoadedTensor>> ReadModelFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  std::string prefix(std::min<int64_t>(info.st_size, 8), '\0');
  RETURN_IF_ERROR(ReadAll(fd.get(), prefix.data(), prefix.size(), 0, path));
  uint64_t header_bytes = 0;
  memcpy(&header_bytes, prefix.data(), prefix.size());
  header_bytes = std::min<uint64_t>(
      {header_bytes, kMaxHeaderBytes, static_cast<uint64_t>(info.st_size) - prefix.size()});
  prefix.resize(prefix.size() + header_bytes);
  RETURN_IF_ERROR(ReadAll(fd.get(), prefix.data() + 8, header_bytes, 8, path));
  absl::StatusOr<SafetensorsHeader> header = DecodeHeader(prefix, info.st_size);
  if (!header.ok()) return Annotate(header.status(), path);
  std::vector<LoadedTensor> tensors;
  for (const auto& [name, stored] : header->tensors) {
    if (stored.dtype != DType::kFp32 && stored.dtype != DType::kFp64) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", name, "' is neither F32 nor F64"));
    }
    LoadedTensor& tensor = tensors.emplace_back();
    tensor.stored = stored;
    const int64_t size_bytes = stored.end_bytes - stored.begin_bytes;
    const bool is_fp64 = stored.dtype == DType::kFp64;
    if (is_fp64) tensor.values64.resize(size_bytes / 8);
    if (!is_fp64) tensor.values.resize(size_bytes / 4);
    char* into = is_fp64 ? reinterpret_cast<char*>(tensor.values64.data())
                         : reinterpret_cast<char*>(tensor.values.data());
    RETURN_IF_ERROR(
        ReadAll(fd.get(), into, size_bytes, header->data_offset_bytes + stored.begin_bytes, path));
  }
  return tensors;
}

}  // namespace tessera
