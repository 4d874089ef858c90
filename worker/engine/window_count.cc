#include "worker/engine/window_count.h"

namespace tessera {
namespace {

constexpr int kCountBits = 16;  // Two windows for each of kMaxLocalRanks ranks fit.
constexpr int kStepBits = 28;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;

}  // namespace

uint64_t WindowTag(int64_t epoch, int64_t step) {
  const uint64_t low_step = static_cast<uint64_t>(step) & ((uint64_t{1} << kStepBits) - 1);
  // Epochs begin at 1; those that are 2^20 apart never meet.
  return (static_cast<uint64_t>(epoch) << kStepBits | low_step) << kCountBits;
}

void OpenWindow(WindowWord* word, uint64_t tag) {
  // Relaxed: the exchange below has the order that matters.
  uint64_t seen = word->load(std::memory_order_relaxed);
  uint64_t next;
  do {
    // Counts of another tag were left by killed ranks or an older step, and are dropped.
    next = (seen & ~kCountMask) == tag ? seen + 1 : tag + 1;
  } while (!word->compare_exchange_weak(seen, next, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
}

bool CloseWindow(WindowWord* word, uint64_t tag) {
  uint64_t seen = word->load(std::memory_order_relaxed);
  do {
    // Already dropped by a rank that is further on.
    if ((seen & ~kCountMask) != tag || (seen & kCountMask) == 0) return false;
  } while (!word->compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  // True for the last window of the host alone.
  // The exchange's acquire puts the discard that follows after what the other ranks read there.
  return seen - 1 == tag;
}

}  // namespace tessera
