#include "worker/keeper/spool_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace tessera {
namespace {

std::string WhatOf(const std::string& folder) {
  return absl::StrCat("spool folder '", folder, "'");
}

// Where the file system makes no files without a name, one is made and its name removed.
// Without a name it is gone with its last descriptor, also if the worker is killed.
UniqueFd OpenUnnamed(const std::string& folder) {
  UniqueFd fd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid() || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string path = folder + "/tessera-spool-XXXXXX";
  fd.Reset(mkostemp(path.data(), O_CLOEXEC));
  if (fd.valid()) unlink(path.c_str());
  return fd;
}

}  // namespace

std::string SpoolFile::What() const { return WhatOf(folder_); }

absl::StatusOr<SpoolFile> SpoolFile::Create(const std::string& folder, int64_t size_bytes) {
  UniqueFd fd = OpenUnnamed(folder);
  if (!fd.valid()) return ErrnoStatus(errno, WhatOf(folder));
  struct statfs system;
  if (fstatfs(fd.get(), &system) == 0 && system.f_type == TMPFS_MAGIC) {
    TESSERA_LOG(WARNING, "{} is in memory: name a folder on a disk with --spool-folder",
                WhatOf(folder));
  }
  // The room is taken at once: a full disk refuses the reader before a byte is copied.
  if (size_bytes > 0 && fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, size_bytes) != 0 &&
      errno != EOPNOTSUPP) {
    return ErrnoStatus(errno, absl::StrCat(WhatOf(folder), ": ", size_bytes, " bytes"));
  }
  return SpoolFile(std::move(fd), folder);
}

absl::Status SpoolFile::Append(const void* data, int64_t size_bytes) {
  const absl::Status status = WriteAt(size_bytes_, data, size_bytes);
  if (status.ok()) size_bytes_ += size_bytes;
  return status;
}

absl::Status SpoolFile::WriteAt(int64_t offset_bytes, const void* data, int64_t size_bytes) const {
  const char* next = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t written = pwrite(fd_.get(), next, size_bytes, offset_bytes);
    if (written < 0 && errno == EINTR) continue;
    // A write of 0 bytes would repeat for ever.
    if (written <= 0) return ErrnoStatus(written < 0 ? errno : ENOSPC, What());
    next += written;
    offset_bytes += written;
    size_bytes -= written;
  }
  return absl::OkStatus();
}

absl::Status SpoolFile::Read(int64_t offset_bytes, void* into, int64_t size_bytes) const {
  char* next = static_cast<char*>(into);
  while (size_bytes > 0) {
    const ssize_t read = pread(fd_.get(), next, size_bytes, offset_bytes);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) {
      return absl::DataLossError(absl::StrCat(What(), ": byte ", offset_bytes, " cannot be read"));
    }
    next += read;
    offset_bytes += read;
    size_bytes -= read;
  }
  return absl::OkStatus();
}

}  // namespace tessera
