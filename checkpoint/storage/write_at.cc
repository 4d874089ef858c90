#include "checkpoint/storage/write_at.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace tessera {

absl::Status WriteAt(int fd, absl::string_view bytes, int64_t at_bytes, const std::string& path) {
  // The kernel may write less than asked, also to a regular file.
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), at_bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    bytes.remove_prefix(written);
    at_bytes += written;
  }
  return absl::OkStatus();
}

}  // namespace tessera
