// Owns a file descriptor; closes it. Move-only, thread-compatible.
#ifndef TESSERA_BASE_UNIQUE_FD_H_
#define TESSERA_BASE_UNIQUE_FD_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// The status of a failed system call: "`what`: No space left on device". The code follows errno:
// ENOENT NotFound, EEXIST AlreadyExists, EADDRINUSE AlreadyExists, EACCES/EPERM PermissionDenied,
// ENOSPC/EDQUOT/ENOMEM/EMFILE ResourceExhausted, EPIPE/ECONNRESET Unavailable, else Internal.
absl::Status ErrnoStatus(int error_number, absl::string_view what);

}  // namespace tessera

#endif  // TESSERA_BASE_UNIQUE_FD_H_
