#include "client/session/window_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

// The handler walks this without a lock, so entries are atomics and never move.
// More guards than this describe nothing. The fault stays a fault.
constexpr int kMaxGuards = 256;
std::atomic<WindowGuard*> guards[kMaxGuards];
struct sigaction previous_action;

std::atomic<int (*)(int)> interrupt_use{nullptr};
std::atomic<int> interrupt_argument{0};
// What the interrupted use was. Several threads may fault at once: the first one is told.
constexpr size_t kLineBytes = 512;
char outside_use[kLineBytes];
std::atomic<bool> outside_use_is_set{false}, outside_use_is_taken{false};

// Shared pages that private ones stand in for, and where they are meanwhile.
struct ReplacedPages {
  void* begin = nullptr;
  size_t size_bytes = 0;
  void* kept = nullptr;
};
constexpr int kMaxReplaced = 4096;
ReplacedPages replaced[kMaxReplaced];
std::atomic<int> num_replaced{0};

// Async-signal-safe: system calls alone.
bool ReplacePages(void* begin, size_t size_bytes) {
  const int index = num_replaced.fetch_add(1);
  if (index >= kMaxReplaced) {
    num_replaced.store(kMaxReplaced);
    return false;
  }
  // From 0 bytes of a shared mapping: maps the same pages a second time.
  void* kept = mremap(begin, 0, size_bytes, MREMAP_MAYMOVE);
  if (kept != MAP_FAILED) {
    if (mmap(begin, size_bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1,
             0) != MAP_FAILED) {
      replaced[index] = {begin, size_bytes, kept};
      return true;
    }
    munmap(kept, size_bytes);
  }
  replaced[index] = {};
  return false;
}

void PutPagesBack() {
  const int count = std::min(num_replaced.exchange(0), kMaxReplaced);
  for (int i = count - 1; i >= 0; --i) {
    const ReplacedPages pages = std::exchange(replaced[i], {});
    if (pages.begin == nullptr) continue;
    (void)mremap(pages.kept, pages.size_bytes, pages.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                 pages.begin);
  }
}

bool IsWrite(const void* context) {
#if defined(__x86_64__)
  // Bit 1 of the page fault's error code.
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  return true;  // Not known; what is good for writes is good for reads.
#endif
}

void OnFault(int signal, siginfo_t* info, void* context) {
  // On the stack: a handler must not allocate.
  char line[kLineBytes];
  for (const auto& entry : guards) {
    WindowGuard* guard = entry.load(std::memory_order_acquire);
    if (guard == nullptr || !guard->Describe(info->si_addr, line, sizeof(line))) continue;
    int (*const interrupt)(int) = interrupt_use.load(std::memory_order_acquire);
    if (interrupt != nullptr &&
        (IsWrite(context) ? guard->LetWrite(info->si_addr) : guard->LetRead(info->si_addr))) {
      if (!outside_use_is_taken.exchange(true)) {
        memcpy(outside_use, line, sizeof(line));
        outside_use_is_set.store(true, std::memory_order_release);
      }
      interrupt(interrupt_argument.load(std::memory_order_relaxed));
      return;
    }
    // write is safe in a handler. What it returns does not matter any more.
    (void)!write(STDERR_FILENO, line, strlen(line));
    break;
  }
  // Returning repeats the access under whatever handled the signal before.
  sigaction(signal, &previous_action, nullptr);
}

void Install() {
  struct sigaction action = {}, before = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &before);
  // If no other code has replaced this handler, it must not become its own predecessor.
  if ((before.sa_flags & SA_SIGINFO) == 0 || before.sa_sigaction != OnFault)
    previous_action = before;
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, Install);
}

}  // namespace

WindowGuard::WindowGuard(const ModelLayout* layout, std::vector<UnitPages> units)
    // Open at first, since the mapping is. The constructor closes all of them.
    : layout_(layout),
      units_(std::move(units)),
      open_(units_.size(), 1),
      let_read_(units_.size(), 0) {
  InstallOnce();
  for (auto& entry : guards) {
    WindowGuard* none = nullptr;
    // Released by the exchange: a handler that sees the pointer sees the object.
    if (entry.compare_exchange_strong(none, this)) break;
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) (void)Close(unit);
}

WindowGuard::~WindowGuard() {
  for (auto& entry : guards) {
    WindowGuard* self = this;
    // Before the object goes: a handler that finds the pointer uses it.
    entry.compare_exchange_strong(self, nullptr);
  }
}

absl::Status WindowGuard::Open(int unit) {
  if (open_[unit]) return absl::OkStatus();
  RETURN_IF_ERROR(Protect(unit, PROT_READ));
  open_[unit] = 1;
  return absl::OkStatus();
}

absl::Status WindowGuard::Close(int unit) {
  if (!open_[unit]) return absl::OkStatus();
  // Noted first: the handler tells a use outside the window by it.
  open_[unit] = 0;
  return Protect(unit, PROT_NONE);
}

absl::Status WindowGuard::Protect(int unit, int protection) {
  if (mprotect(units_[unit].begin, units_[unit].size_bytes, protection) == 0)
    return absl::OkStatus();
  return ErrnoStatus(errno, "protect the parameters of a unit");
}

void WindowGuard::OnOutsideUse(int (*interrupt)(int), int argument) {
  interrupt_argument.store(argument, std::memory_order_relaxed);
  interrupt_use.store(interrupt, std::memory_order_release);
}

std::string WindowGuard::TakeOutsideUse() {
  PutPagesBack();
  for (auto& entry : guards) {
    if (WindowGuard* guard = entry.load(std::memory_order_acquire)) guard->CloseLetRead();
  }
  if (!outside_use_is_set.exchange(false, std::memory_order_acquire)) return "";
  std::string line = outside_use;
  outside_use_is_taken.store(false);
  if (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

void WindowGuard::InstallHandler() { Install(); }

int WindowGuard::UnitAt(const void* address) const {
  const std::byte* at = static_cast<const std::byte*>(address);
  for (size_t u = 0; u < units_.size(); ++u) {
    if (at >= units_[u].begin && at < units_[u].begin + units_[u].size_bytes)
      return static_cast<int>(u);
  }
  return -1;
}

// Called in a signal handler. mprotect is a system call alone.
bool WindowGuard::LetRead(const void* address) {
  const int unit = UnitAt(address);
  if (unit < 0 || open_[unit] || !Protect(unit, PROT_READ).ok()) return false;
  let_read_[unit] = 1;
  return true;
}

bool WindowGuard::LetWrite(const void* address) {
  const int unit = UnitAt(address);
  if (unit < 0) return false;
  let_read_[unit] = 1;
  // A unit whose parts are mapped from several files is more than one mapping.
  if (ReplacePages(units_[unit].begin, units_[unit].size_bytes)) return true;
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return ReplacePages(
      reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) / page_bytes * page_bytes),
      page_bytes);
}

void WindowGuard::CloseLetRead() {
  for (size_t u = 0; u < units_.size(); ++u) {
    if (!let_read_[u]) continue;
    let_read_[u] = 0;
    (void)Protect(static_cast<int>(u), open_[u] ? PROT_READ : PROT_NONE);
  }
}

// Called in a signal handler: no locks, no allocation.
bool WindowGuard::Describe(const void* address, char* buffer, size_t capacity) const {
  const int u = UnitAt(address);
  if (u < 0) return false;
  const FlatLayout& flat = layout_->units[u].flat;
  const int64_t element =
      (static_cast<const std::byte*>(address) - units_[u].begin) / units_[u].element_bytes;
  const char* parameter = "(padding)";
  for (const PlacedParameter& placed : flat.parameters()) {
    if (element >= placed.offset_elements && element < placed.offset_elements + placed.numel)
      parameter = placed.spec.name.c_str();
  }
  snprintf(buffer, capacity, "tessera: parameter '%s' of unit '%s' was %s\n", parameter,
           flat.unit_name().c_str(),
           open_[u] ? "written, but trainers may only read parameters"
                    : "used while the unit is sharded (outside its unshard/reshard window)");
  return true;
}

}  // namespace tessera
