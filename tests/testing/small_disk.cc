#include "tests/testing/small_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera::testing_support {
namespace {

absl::Status WriteText(const std::string& path, const std::string& text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
    return absl::OkStatus();
  return ErrnoStatus(errno, path);
}

}  // namespace

absl::Status EnterOwnMountNamespace() {
  if (unshare(CLONE_NEWNS) != 0) {
    const int uid = geteuid(), gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return ErrnoStatus(errno, "unshare");
    RETURN_IF_ERROR(WriteText("/proc/self/setgroups", "deny"));
    RETURN_IF_ERROR(WriteText("/proc/self/uid_map", absl::StrCat(uid, " ", uid, " 1")));
    RETURN_IF_ERROR(WriteText("/proc/self/gid_map", absl::StrCat(gid, " ", gid, " 1")));
  }
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return ErrnoStatus(errno, "make mounts private");
  return absl::OkStatus();
}

void SmallDisk::Unmount() {
  if (!folder_.empty()) umount(folder_.c_str());
  folder_.clear();
}

absl::Status SmallDisk::Mount(const std::string& folder, int64_t size_bytes) {
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, absl::StrCat("size=", size_bytes).c_str()) != 0)
    return ErrnoStatus(errno, "mount");
  folder_ = folder;
  return absl::OkStatus();
}

absl::Status SmallDisk::Fill() {
  const UniqueFd fd(open((folder_ + "/ballast").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string page(4096, 'x');
  while (write(fd.get(), page.data(), page.size()) > 0) {
  }
  return errno == ENOSPC ? absl::OkStatus() : ErrnoStatus(errno, "fill a disk");
}

absl::Status SmallDisk::Free() {
  std::error_code error;
  std::filesystem::remove(folder_ + "/ballast", error);
  return error ? ErrnoStatus(error.value(), "free a disk") : absl::OkStatus();
}

}  // namespace tessera::testing_support
