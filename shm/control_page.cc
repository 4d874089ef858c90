#include "shm/control_page.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/restart_required.h"
#include "base/steady_time.h"
#include "base/utf8.h"

namespace tessera {
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
    case OpKind::kFail:
      return "fail";
    case OpKind::kRead:
      return "read";
    case OpKind::kReadGradient:
      return "read-gradient";
    case OpKind::kWrite:
      return "write";
    case OpKind::kWriteGradient:
      return "write-gradient";
    case OpKind::kFinishWrite:
      return "finish-write";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kExchange:
      return "exchange";
    case OpKind::kEndForward:
      return "end-forward";
    case OpKind::kReadShard:
      return "read-shard";
    case OpKind::kReadGradientShard:
      return "read-gradient-shard";
    case OpKind::kTally:
      return "tally";
    case OpKind::kAnnounceStep:
      return "announce-step";
    case OpKind::kUpdate:
      return "update";
    case OpKind::kLoad:
      return "load";
    case OpKind::kSend:
      return "send";
    case OpKind::kReceive:
      return "receive";
    case OpKind::kReadProgress:
      return "read-progress";
    case OpKind::kSaveStatus:
      return "save-status";
    case OpKind::kPut:
      return "put";
    case OpKind::kCancelSave:
      return "cancel-save";
    case OpKind::kFinishTrainersStep:
      return "finish-trainers-step";
    case OpKind::kRestoreBuffers:
      return "restore-buffers";
  }
  return absl::StrCat("operation ", static_cast<uint32_t>(kind));
}

absl::Status AwaitEvent(ControlPage* page, uint32_t epoch, absl::Time deadline,
                        absl::FunctionRef<std::string()> what, absl::FunctionRef<bool()> done) {
  while (true) {
    // Before the conditions: an event between them and the wait changes the word, so no wake-up is
    // lost.
    const uint32_t seen = page->events.value.load(std::memory_order_acquire);
    // Pairs with the release in PublishFailure: code and message are visible.
    if (page->failed_epoch.load(std::memory_order_acquire) >= epoch) {
      return absl::Status(TrainersCode(page->failure_code),
                          LoadText(page->failure_message, kMaxErrorBytes));
    }
    // The page may have moved on before this waiter looked. No event of its epoch comes any more.
    if (page->epoch.load(std::memory_order_acquire) > epoch) {
      return absl::AbortedError(absl::StrCat("epoch ", epoch, " ended while waiting for ", what()));
    }
    if (done()) return absl::OkStatus();
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited too long for ", what()));
    }
    WaitForChange(&page->events, seen, deadline);
  }
}

void PublishFailure(ControlPage* page, uint32_t epoch, const absl::Status& status) {
  // Before the epoch, which publishes both.
  page->failure_code = status.raw_code();
  StoreText(status.message(), page->failure_message, kMaxErrorBytes);
  page->failed_epoch.store(epoch, std::memory_order_release);
  Bump(&page->events);
}

void StoreText(absl::string_view text, char* buffer, size_t capacity) {
  text = Utf8Prefix(text, capacity - 1);
  const size_t size = text.size();
  if (size > 0) memcpy(buffer, text.data(), size);  // No text may have no address.
  memset(buffer + size, 0, capacity - size);
}

std::string LoadText(const char* buffer, size_t capacity) {
  return std::string(buffer, strnlen(buffer, capacity));
}

}  // namespace tessera
