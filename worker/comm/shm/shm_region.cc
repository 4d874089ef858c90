#include "worker/comm/shm/shm_region.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// Moves `word` up to `value`; returns whether this call moved it.
// Never down: an abort of an older epoch that comes late must not end a newer one.
bool RaiseTo(std::atomic<uint32_t>* word, uint32_t value) {
  uint32_t current = word->load(std::memory_order_acquire);
  // A failed exchange has loaded the newer value: the process that raised it farther did this, too.
  while (current < value) {
    if (word->compare_exchange_weak(current, value, std::memory_order_acq_rel)) return true;
  }
  return false;
}

// From the moment that a rank begins to say why it aborts until it has.
constexpr absl::Duration kReasonTimeout = absl::Seconds(1);

}  // namespace

uint32_t ShmRegion::Geometry() const {
  uint64_t mixed = static_cast<uint64_t>(size_) * 0x9E3779B97F4A7C15u;
  mixed ^= static_cast<uint64_t>(num_channels_) * 0xC2B2AE3D27D4EB4Fu;
  mixed ^= static_cast<uint64_t>(staging_bytes_) * 0x165667B19E3779F9u;
  return static_cast<uint32_t>(mixed >> 32) | 1u;
}

void ShmRegion::Abort(uint32_t epoch, absl::string_view reason) const {
  AbortBlock* block = abort_block();
  // The text is not atomic, so only the process that moves the claim may write it.
  if (RaiseTo(&block->claimed_epoch, epoch)) {
    const size_t length = std::min(reason.size(), AbortBlock::kReasonBytes - 1);
    if (length > 0) std::memcpy(block->reason, reason.data(), length);
    block->reason[length] = '\0';
    // Pairs with the acquire in AbortReason: a reader of this epoch sees the whole text.
    block->reason_epoch.store(epoch, std::memory_order_release);
  }
  // After the reason, so that a wait which ends by this usually finds it.
  // The claimant may have died before this: the abort itself never depends on it.
  RaiseTo(&block->aborted_epoch, epoch);
  WakeEveryone();
}

void ShmRegion::Supersede(uint32_t epoch) const {
  // Without a reason: a straggler is told that a later epoch was seen.
  if (RaiseTo(&abort_block()->aborted_epoch, epoch - 1)) WakeEveryone();
}

std::string ShmRegion::AbortReason(uint32_t epoch) const {
  const AbortBlock* block = abort_block();
  // Two may abort at once, and the one that has the word may not run yet, or have died.
  const absl::Time deadline = SteadyNow() + kReasonTimeout;
  while (block->claimed_epoch.load(std::memory_order_acquire) == epoch &&
         block->reason_epoch.load(std::memory_order_acquire) < epoch && SteadyNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (block->reason_epoch.load(std::memory_order_acquire) == epoch) {
    // The claimant of a later epoch may overwrite it now. That tears the text, within its bounds.
    return std::string(block->reason, strnlen(block->reason, AbortBlock::kReasonBytes));
  }
  const uint32_t aborted = block->aborted_epoch.load(std::memory_order_acquire);
  if (aborted > epoch) return absl::StrCat("epoch ", epoch, " is over: ", aborted, " was seen");
  return absl::StrCat("epoch ", epoch, " was aborted; its reason was lost or superseded");
}

void ShmRegion::WakeEveryone() const {
  // Wakes are a courtesy: a waiter that gets none looks again after its slice.
  for (int channel = 0; channel < num_channels_; ++channel) {
    for (int rank = 0; rank < size_; ++rank) {
      for (const WaitWord* word : slot(channel, rank)->wait_words()) WakeAll(word->value);
    }
  }
}

}  // namespace tessera
