#include "worker/service/socket_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

// A user who may write to the folder could put a socket where trainers look for ours.
absl::StatusOr<SocketFolder> SocketFolder::Open(const std::string& path) {
  const std::string what = absl::StrCat("socket folder '", path, "'");
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, what);
  // The open folder is what is checked and locked: the path may be replaced meanwhile.
  UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    if (errno == ENOTDIR) return absl::InvalidArgumentError(absl::StrCat(what, ": no folder"));
    return ErrnoStatus(errno, what);
  }
  struct stat info;
  if (fstat(folder.get(), &info) != 0) return ErrnoStatus(errno, what);
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, ": belongs to user ", info.st_uid, ", not to user ", geteuid()));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, ": others than its user may write to it; its mode must be 0700"));
  }
  // The lock ends with the process, however that ends.
  if (flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return absl::AlreadyExistsError(absl::StrCat(what, ": another worker has it"));
    return ErrnoStatus(errno, absl::StrCat(what, ": lock"));
  }
  return SocketFolder(std::move(folder));
}

}  // namespace tessera
