// A file without a name: each byte is written once, read anywhere, gone with the process or this
// object. For bytes that must not be in this process's memory. Move-only; thread-compatible, but
// WriteAt and Read may be called by any threads at once.
#ifndef TESSERA_WORKER_KEEPER_SPOOL_FILE_H_
#define TESSERA_WORKER_KEEPER_SPOOL_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera {

class SpoolFile {
 public:
  // Has room for `size_bytes` where the file system can reserve it.
  // Errors, here and below, all naming the folder:
  //   NotFound           no such folder
  //   PermissionDenied   it may not be written to
  //   ResourceExhausted  no room is left there
  static absl::StatusOr<SpoolFile> Create(const std::string& folder, int64_t size_bytes);

  // After what was appended.
  absl::Status Append(const void* data, int64_t size_bytes);
  absl::Status WriteAt(int64_t offset_bytes, const void* data, int64_t size_bytes) const;
  // Errors: also DataLoss  there are no such bytes, or they cannot be read.
  absl::Status Read(int64_t offset_bytes, void* into, int64_t size_bytes) const;
  int64_t size_bytes() const { return size_bytes_; }
  int fd() const { return fd_.get(); }  // For readers elsewhere. Owned by this.

 private:
  SpoolFile(UniqueFd fd, std::string folder) : fd_(std::move(fd)), folder_(std::move(folder)) {}
  std::string What() const;

  UniqueFd fd_;
  std::string folder_;
  int64_t size_bytes_ = 0;  // Appended.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_SPOOL_FILE_H_
