#include "client/session/window_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

// The handler walks this without a lock, so entries are atomics and never move.
// More guards than this describe nothing. The fault stays a fault.
constexpr int kMaxGuards = 256;
std::atomic<const WindowGuard*> guards[kMaxGuards];
struct sigaction previous_action;

void OnFault(int signal, siginfo_t* info, void* context) {
  // On the stack: a handler must not allocate.
  char line[512];
  for (const auto& entry : guards) {
    const WindowGuard* guard = entry.load(std::memory_order_acquire);
    if (guard == nullptr || !guard->Describe(info->si_addr, line, sizeof(line))) continue;
    // write is safe in a handler. What it returns does not matter any more.
    (void)!write(STDERR_FILENO, line, strlen(line));
    break;
  }
  // Returning repeats the access under whatever handled the signal before.
  sigaction(signal, &previous_action, nullptr);
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous_action);
  });
}

}  // namespace

WindowGuard::WindowGuard(const ModelLayout* layout, std::vector<UnitPages> units)
    // Open at first, since the mapping is. The constructor closes all of them.
    : layout_(layout), units_(std::move(units)), open_(units_.size(), 1) {
  InstallOnce();
  for (auto& entry : guards) {
    const WindowGuard* none = nullptr;
    // Released by the exchange: a handler that sees the pointer sees the object.
    if (entry.compare_exchange_strong(none, this)) break;
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) (void)Close(unit);
}

WindowGuard::~WindowGuard() {
  for (auto& entry : guards) {
    const WindowGuard* self = this;
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

// Called in a signal handler: no locks, no allocation.
bool WindowGuard::Describe(const void* address, char* buffer, size_t capacity) const {
  const std::byte* at = static_cast<const std::byte*>(address);
  for (size_t u = 0; u < units_.size(); ++u) {
    if (at < units_[u].begin || at >= units_[u].begin + units_[u].size_bytes) continue;
    const FlatLayout& flat = layout_->units[u].flat;
    const int64_t element = (at - units_[u].begin) / units_[u].element_bytes;
    const char* parameter = "(padding)";
    for (const PlacedParameter& placed : flat.parameters()) {
      if (element >= placed.offset_elements && element < placed.offset_elements + placed.numel) {
        parameter = placed.spec.name.c_str();
      }
    }
    snprintf(buffer, capacity, "tessera: parameter '%s' of unit '%s' was %s\n", parameter,
             flat.unit_name().c_str(),
             open_[u] ? "written, but trainers may only read parameters"
                      : "used while the unit is sharded (outside its unshard/reshard window)");
    return true;
  }
  return false;
}

}  // namespace tessera
