#include "worker/memory/control_page.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tessera {
namespace {

// Looks at the word so often before it gives up its time slice for good.
constexpr int kYields = 50;
// A sleeper looks again this often though nobody woke it, since its waker may have been killed
// between the store and the wake.
constexpr absl::Duration kMaxSleep = absl::Milliseconds(100);

uint32_t* Raw(const std::atomic<uint32_t>& word) {
  return reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint32_t>*>(&word));
}

}  // namespace

std::string OpName(OpKind kind) {
  switch (kind) {
    case OpKind::kUnshard:
      return "unshard";
    case OpKind::kReshard:
      return "reshard";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kInitialize:
      return "initialize";
    case OpKind::kFinishInitialize:
      return "finish-initialize";
    case OpKind::kStep:
      return "step";
    case OpKind::kDropGradients:
      return "drop-gradients";
    case OpKind::kSave:
      return "save";
  }
  return absl::StrCat("operation ", static_cast<uint32_t>(kind));
}

void Bump(std::atomic<uint32_t>* word) {
  word->fetch_add(1, std::memory_order_acq_rel);
  syscall(SYS_futex, Raw(*word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void WaitForChange(const std::atomic<uint32_t>& word, uint32_t seen, absl::Time deadline) {
  for (int i = 0; i < kYields; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    sched_yield();
  }
  while (word.load(std::memory_order_acquire) == seen) {
    const absl::Duration left = std::min(deadline - absl::Now(), kMaxSleep);
    if (left <= absl::ZeroDuration()) return;
    const timespec timeout = absl::ToTimespec(left);
    syscall(SYS_futex, Raw(word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
  }
}

absl::Status AwaitEvent(const ControlPage& page, uint32_t epoch, absl::Time deadline,
                        absl::string_view what, const std::function<bool()>& done) {
  while (true) {
    const uint32_t seen = page.events.load(std::memory_order_acquire);
    if (page.failed_epoch.load(std::memory_order_acquire) >= epoch) {
      return absl::Status(static_cast<absl::StatusCode>(page.failure_code),
                          LoadText(page.failure_message, kMaxErrorBytes));
    }
    if (page.epoch.load(std::memory_order_acquire) > epoch) {
      return absl::AbortedError(absl::StrCat("epoch ", epoch, " ended while waiting for ", what));
    }
    if (done()) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited too long for ", what));
    }
    WaitForChange(page.events, seen, deadline);
  }
}

void PublishFailure(ControlPage* page, uint32_t epoch, const absl::Status& status) {
  page->failure_code = status.raw_code();
  StoreText(status.message(), page->failure_message, kMaxErrorBytes);
  page->failed_epoch.store(epoch, std::memory_order_release);
  Bump(&page->events);
}

void StoreText(absl::string_view text, char* buffer, size_t capacity) {
  const size_t size = std::min(text.size(), capacity - 1);
  memcpy(buffer, text.data(), size);
  memset(buffer + size, 0, capacity - size);
}

std::string LoadText(const char* buffer, size_t capacity) {
  return std::string(buffer, strnlen(buffer, capacity));
}

}  // namespace tessera
