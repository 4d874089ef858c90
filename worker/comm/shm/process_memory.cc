#include "worker/comm/shm/process_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status ReadProcessMemory(pid_t process, uint64_t address, void* to, int64_t bytes) {
  // A read that crosses the end of a mapping is short. The next one then fails.
  while (bytes > 0) {
    const iovec local = {to, static_cast<size_t>(bytes)};
    const iovec remote = {reinterpret_cast<void*>(address), static_cast<size_t>(bytes)};
    const ssize_t read = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) {
      const int error = read < 0 ? errno : EFAULT;
      const std::string message =
          absl::StrCat("read the memory of process ", process, ": ", strerror(error));
      return error == ESRCH ? absl::NotFoundError(message) : absl::UnavailableError(message);
    }
    address += static_cast<uint64_t>(read);
    to = static_cast<char*>(to) + read;
    bytes -= read;
  }
  return absl::OkStatus();
}

}  // namespace tessera
