#include "worker/engine/buffer_slots.h"

#include <atomic>
#include <cstring>

#include "base/fault_point.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Of a slot: loaded for a version to come. No trainer's word is taken that looks so.
constexpr uint64_t kLoaded = uint64_t{1} << 63;
// Of a slot whose bytes are some of two writes.
constexpr uint64_t kTorn = 1;

// The same bytes, whichever process set them.
bool AreEqual(uint64_t a, uint64_t b) { return (a & ~kGivenWord) == (b & ~kGivenWord); }

bool IsWhole(uint64_t staged) { return staged != 0 && staged % 2 == 0 && (staged & kLoaded) == 0; }

}  // namespace

BufferSlots::BufferSlots(const BufferPlacement* placement, std::byte* staging, std::byte* slots)
    : placement_(placement),
      size_(placement->size()),
      staging_(placement, staging),
      slots_{{placement, slots}, {placement, slots + placement->bank_bytes()}} {}

void BufferSlots::Publish(int64_t step) {
  for (int buffer = 0; buffer < size_; ++buffer) PublishOne(step, buffer);
}

void BufferSlots::PublishOne(int64_t step, int buffer) {
  const BufferBank& to = slots_[step % 2];
  const uint64_t has = to.sequence(buffer).load(std::memory_order_relaxed);
  // A load set this version. Its bytes replace what the trainer has, too.
  if ((has & kLoaded) != 0) {
    // The trainer waits for the load, and what it said before is void.
    staging_.Give(buffer, to.values(buffer));
    to.sequence(buffer).store(staging_.sequence(buffer).load(std::memory_order_relaxed) & ~kLoaded,
                              std::memory_order_release);
    return;
  }
  // Acquire: the bytes in staging are at least those of this word. Copy checks them again.
  const uint64_t staged = staging_.sequence(buffer).load(std::memory_order_acquire);
  // A predecessor that died had copied these bytes already.
  if (IsWhole(staged) && AreEqual(staged, has))
    return to.sequence(buffer).store(staged, std::memory_order_relaxed);
  const BufferBank& before = slots_[(step + 1) % 2];
  // Before step 0 there is no version to fall back to.
  const uint64_t had = step == 0 ? 0 : before.sequence(buffer).load(std::memory_order_relaxed);
  // Copy fails if the trainer writes meanwhile. Then the version before is carried over.
  if (IsWhole(staged) && !AreEqual(staged, had) && Copy(buffer, staging_, to, staged)) return;
  if (step > 0 && AreEqual(to.sequence(buffer).load(std::memory_order_relaxed), had)) {
    to.sequence(buffer).store(had, std::memory_order_relaxed);
  } else if (step > 0) {
    // Not from staging: a trainer that died may have started to write there again.
    Copy(buffer, before, to, had);
  } else if (step == 0 && to.sequence(buffer).load(std::memory_order_relaxed) == kTorn) {
    // Left by a copy that did not end, here or in an executor that died. A buffer without values
    // is zero.
    if (to.size_bytes(buffer) > 0) memset(to.values(buffer), 0, to.size_bytes(buffer));
    to.sequence(buffer).store(0, std::memory_order_release);
  }
}

bool BufferSlots::Copy(int buffer, const BufferBank& from, const BufferBank& to,
                       uint64_t sequence) {
  // Torn until the last byte is there: a successor of a killed executor does not take it for whole.
  to.sequence(buffer).store(kTorn, std::memory_order_relaxed);
  // Keeps the stores of the values after that of the word.
  std::atomic_thread_fence(std::memory_order_release);
  const int64_t half = to.size_bytes(buffer) / 2;
  if (half > 0) memcpy(to.values(buffer), from.values(buffer), half);
  (void)FaultPoint("buffers.publish");
  if (to.size_bytes(buffer) > 0) {
    memcpy(to.values(buffer) + half, from.values(buffer) + half, to.size_bytes(buffer) - half);
  }
  ++num_copied_;
  std::atomic_thread_fence(std::memory_order_acquire);  // The look comes after what was read.
  if (from.sequence(buffer).load(std::memory_order_relaxed) != sequence) return false;
  // Release: what acquires the word sees all values.
  to.sequence(buffer).store(sequence, std::memory_order_release);
  return true;
}

absl::Status BufferSlots::Load(int64_t step, int buffer,
                               absl::FunctionRef<absl::Status(std::byte* values)> read) {
  const BufferBank& to = slots_[step % 2];
  // As in Copy: torn while it is written.
  to.sequence(buffer).store(kTorn, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  // An error leaves kTorn: the next Publish of this version writes it again.
  RETURN_IF_ERROR(read(to.values(buffer)));
  to.sequence(buffer).store(kLoaded, std::memory_order_release);
  return absl::OkStatus();
}

void BufferSlots::Load(int64_t step, int buffer, absl::string_view values) {
  // The function that copies cannot fail.
  (void)Load(step, buffer, [values](std::byte* to) {
    if (!values.empty()) memcpy(to, values.data(), values.size());
    return absl::OkStatus();
  });
}

void BufferSlots::TakeOver(int64_t step, std::byte* bank) {
  const BufferBank from(placement_, bank);
  for (int buffer = 0; buffer < size_; ++buffer) {
    if (!IsWhole(from.sequence(buffer).load(std::memory_order_relaxed))) continue;
    Load(step, buffer,
         absl::string_view(reinterpret_cast<const char*>(from.values(buffer)),
                           static_cast<size_t>(from.size_bytes(buffer))));
  }
  Publish(step);
}

void BufferSlots::Restore(int64_t step) {
  const BufferBank& from = slots_[step % 2];
  for (int buffer = 0; buffer < size_; ++buffer) {
    const uint64_t has = from.sequence(buffer).load(std::memory_order_relaxed);
    if (!IsWhole(has)) continue;
    std::atomic<uint64_t>& staged = staging_.sequence(buffer);
    // The previous trainer left the same bytes. Only their owner changes.
    if (AreEqual(staged.load(std::memory_order_relaxed), has)) {
      staged.store(has | kGivenWord, std::memory_order_release);
    } else {
      staging_.Give(buffer, from.values(buffer));
    }
    const uint64_t given = staged.load(std::memory_order_relaxed);
    if (IsWhole(given)) from.sequence(buffer).store(given, std::memory_order_release);
  }
}

void BufferSlots::DropLoaded() {
  for (const BufferBank& slot : slots_) {
    for (int buffer = 0; buffer < size_; ++buffer) {
      if ((slot.sequence(buffer).load(std::memory_order_relaxed) & kLoaded) != 0)
        // Not 0: the load has overwritten what the slot had, so no word of an older version is
        // true.
        slot.sequence(buffer).store(kTorn, std::memory_order_relaxed);
    }
  }
}

}  // namespace tessera
