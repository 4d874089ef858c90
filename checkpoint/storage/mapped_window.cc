#include "checkpoint/storage/mapped_window.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "base/check.h"
#include "base/streaming_copy.h"

namespace tessera {
namespace {

struct sigaction previous_action;
std::atomic<bool> may_map{false};

// What this thread copies from at present. Written by the thread and read by a handler in it.
struct Guarded {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool was_hit = false;
};
thread_local volatile Guarded guarded;

size_t PageBytes() {
  static const size_t page_bytes = sysconf(_SC_PAGESIZE);
  return page_bytes;
}

// Nothing but what a handler may call, as far as mmap is that: it is a system call, and no more.
// Another process may truncate the file at any time: pages that are gone then raise SIGBUS.
void OnBusError(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  char* const at = static_cast<char*>(info->si_addr);
  // Only this thread's copy is expected to fail. Any other access is somebody's bug.
  if (at >= guarded.begin && at < guarded.end) {
    const size_t page_bytes = PageBytes();
    char* const page = at - reinterpret_cast<uintptr_t>(at) % page_bytes;
    // A page of zeroes takes its place, so that the copy goes on. Its result is thrown away.
    if (mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
      guarded.was_hit = true;
      errno = saved_errno;
      return;
    }
  }
  // Returning repeats the access under whatever handled the signal before.
  sigaction(signal, &previous_action, nullptr);
  errno = saved_errno;
}

// Whether the page cache has a byte of each so many of the range, its last among them.
bool IsCached(int fd, int64_t at_bytes, int64_t size_bytes) {
  constexpr int64_t kProbeBytes = 256 << 10;
  const int64_t end_bytes = at_bytes + size_bytes;
  for (int64_t at = at_bytes; at < end_bytes; at += kProbeBytes) {
    char byte;
    iovec into = {&byte, 1};
    const int64_t last = std::min(at + kProbeBytes, end_bytes) - 1;
    // A read that may not wait: it fails unless the page is in the cache.
    if (preadv2(fd, &into, 1, last, RWF_NOWAIT) != 1) return false;
  }
  return true;
}

}  // namespace

void LetFilesBeMapped() {
  static std::once_flag once;
  std::call_once(once, [] {
    PageBytes();
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    // Only with the handler: without it a file that is truncated would end the process.
    if (sigaction(SIGBUS, &action, &previous_action) == 0) may_map = true;
  });
}

std::optional<MappedWindow> MappedWindow::OfCached(int fd, int64_t at_bytes, int64_t size_bytes) {
  // Mapping what is on disk would fault page by page, slower than reads (docs/adr/0056).
  if (!may_map || size_bytes <= 0 || !IsCached(fd, at_bytes, size_bytes)) return std::nullopt;
  const int64_t skipped_bytes = at_bytes % static_cast<int64_t>(PageBytes());
  const int64_t mapped_bytes = size_bytes + skipped_bytes;
  void* const begin =
      mmap(nullptr, mapped_bytes, PROT_READ, MAP_SHARED, fd, at_bytes - skipped_bytes);
  if (begin == MAP_FAILED) return std::nullopt;
  return MappedWindow(static_cast<char*>(begin), mapped_bytes, skipped_bytes);
}

MappedWindow::~MappedWindow() {
  if (begin_ != nullptr) munmap(begin_, size_bytes_);
}

bool MappedWindow::Copy(int64_t from_bytes, int64_t size_bytes, void* into) const {
  TESSERA_CHECK(from_bytes >= 0 && size_bytes >= 0 &&
                size_bytes <= size_bytes_ - skipped_bytes_ - from_bytes);
  const char* const from = begin_ + skipped_bytes_ + from_bytes;
  guarded.was_hit = false;
  guarded.begin = begin_;
  guarded.end = begin_ + size_bytes_;
  // The handler runs on this thread, so a fence for the compiler is enough.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  CopyAhead(into, from, size_bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guarded.end = nullptr;
  guarded.begin = nullptr;
  return !guarded.was_hit;
}

}  // namespace tessera
