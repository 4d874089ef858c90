#include "shm/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<UniqueFd> ReopenForReading(int fd) {
  // Opened again through /proc: a duplicate of the descriptor would keep the right to write.
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  UniqueFd reopened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (reopened.valid()) return reopened;
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) return ErrnoStatus(errno, path);
  return absl::FailedPreconditionError(
      absl::StrCat("memory can be given for reading only where there is a /proc: ",
                   ErrnoStatus(errno, path).message()));
}

absl::StatusOr<UniqueFd> MakeSealedFile(absl::string_view label, absl::string_view bytes) {
  const std::string name = absl::StrCat("tessera:", label);
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("memfd_create ", name));
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", name));
    bytes.remove_prefix(written);
  }
  // Sealed only now, since it had to be written first.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    return ErrnoStatus(errno, absl::StrCat("seal ", name));
  return fd;
}

absl::StatusOr<int64_t> SizeOfSealed(int fd) {
  // A reader needs F_SEAL_SHRINK alone: a page that goes away under it would be a SIGBUS.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return absl::DataLossError(
        "the received descriptor is not memory, or is memory that may shrink");
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat received memory");
  return static_cast<int64_t>(info.st_size);
}

absl::StatusOr<std::string> ReadSealedFile(int fd, int64_t most_bytes) {
  ASSIGN_OR_RETURN(const int64_t size_bytes, SizeOfSealed(fd));
  // Else the sender could change it between the check of its content and its use.
  if ((fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE) == 0)
    return absl::DataLossError("a received file may change");
  // Before anything is allocated for it.
  if (size_bytes > most_bytes)
    return absl::DataLossError(absl::StrCat("a file of ", size_bytes, " bytes arrived"));
  std::string bytes(size_bytes, 0);
  for (int64_t done = 0; done < size_bytes;) {
    const ssize_t count = pread(fd, &bytes[done], size_bytes - done, done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return ErrnoStatus(count < 0 ? errno : EIO, "read a received file");
    done += count;
  }
  return bytes;
}

}  // namespace tessera
