// The folder of a worker's sockets: this user's alone, and one worker's at a time.
#ifndef TESSERA_WORKER_SERVICE_SOCKET_FOLDER_H_
#define TESSERA_WORKER_SERVICE_SOCKET_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera {

// Holds the folder's lock; the kernel gives it back when the process ends, however it does. The
// lock is on the folder itself, so no file is left. Move-only; thread-compatible.
class SocketFolder {
 public:
  // Makes the folder (mode 0700) if it is missing.
  // Errors: AlreadyExists     another worker has it; names the folder
  //         InvalidArgument   it is not a folder
  //         PermissionDenied  it cannot be made, is another user's or others may write to it
  static absl::StatusOr<SocketFolder> Open(const std::string& path);

 private:
  explicit SocketFolder(UniqueFd lock) : lock_(std::move(lock)) {}

  UniqueFd lock_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_SOCKET_FOLDER_H_
