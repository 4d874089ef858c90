#include "worker/keeper/executor_slot.h"

#include <sys/socket.h>

#include "shm/fd_passing.h"

namespace tessera {

void ExecutorSlot::Send(const v1::ExecutorCommand& command, absl::Span<const int> fds) {
  // A full or closed socket means a stuck or dead executor; its supervisor sees the end.
  if (ready && !ending &&
      !SendPacket(socket.get(), command.SerializeAsString(), fds, /*wait=*/false).ok()) {
    ending = true;
    // A launched executor is cut off. A hosted one may still send: that it is quiet is waited for.
    shutdown(socket.get(), host == Incarnation() ? SHUT_RDWR : SHUT_WR);
  }
}

void ExecutorSlot::End() {
  if (executor == nullptr) return;
  // Before the socket ends, so that nothing that it still says counts.
  ending = true;
  shutdown(socket.get(), host == Incarnation() ? SHUT_RDWR : SHUT_WR);
  executor->Kill();
}

}  // namespace tessera
