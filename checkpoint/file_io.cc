#include "checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera {

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes) {
  RETURN_IF_ERROR(FaultPoint("file.write"));
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", path));
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    bytes.remove_prefix(written);
  }
  RETURN_IF_ERROR(FaultPoint("file.sync"));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync ", path));
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, absl::string_view bytes, int64_t at_bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), at_bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    bytes.remove_prefix(written);
    at_bytes += written;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file"));
  if (info.st_size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", info.st_size, " bytes, more than ", max_bytes));
  }
  std::string bytes(info.st_size, '\0');
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = read(fd.get(), &bytes[at], bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (got == 0) return absl::DataLossError(absl::StrCat(path, ": shorter than it was"));
    at += got;
  }
  return bytes;
}

absl::Status SyncFolder(const std::string& path) {
  RETURN_IF_ERROR(FaultPoint("folder.sync"));
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open folder ", path));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync folder ", path));
  return absl::OkStatus();
}

}  // namespace tessera
