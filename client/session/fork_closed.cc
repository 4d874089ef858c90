#include "client/session/fork_closed.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

namespace tessera {
namespace {

// The child's handler may call only what is async-signal-safe, and take no lock: another thread may
// have held it when the process was forked.
constexpr int kSlots = 256;
constexpr int kFree = -2, kNone = -1;
std::atomic<int> slots[kSlots];
std::atomic<int> null_fd{kNone};
std::atomic<int> num_forks{0};  // From the process that began to this one.

void InChild() {
  num_forks.fetch_add(1);
  const int null = null_fd.load();
  for (std::atomic<int>& slot : slots) {
    const int fd = slot.load();
    // Not closed: the number stays taken, so that the child's session hits no other file with it.
    if (fd >= 0 && null >= 0) (void)dup2(null, fd);
  }
}

// Returns num_forks.
int InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (std::atomic<int>& slot : slots) slot.store(kFree);
    null_fd.store(open("/dev/null", O_RDWR | O_CLOEXEC));
    pthread_atfork(nullptr, nullptr, InChild);
  });
  return num_forks.load();
}

}  // namespace

ForkClosed::ForkClosed() : made_after_forks_(InstallOnce()) {
  for (int i = 0; i < kSlots; ++i) {
    int free = kFree;
    // Without a free slot children keep the socket: the trainer's death shows once they have ended.
    if (!slots[i].compare_exchange_strong(free, kNone)) continue;
    slot_ = i;
    return;
  }
}

ForkClosed::~ForkClosed() {
  if (slot_ >= 0) slots[slot_].store(kFree);
}

void ForkClosed::Set(int fd) {
  if (slot_ >= 0) slots[slot_].store(fd);
}

bool ForkClosed::is_inherited() const {
  return num_forks.load(std::memory_order_relaxed) != made_after_forks_;
}

}  // namespace tessera
