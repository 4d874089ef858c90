#include "shm/flight_ring.h"

#include <time.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Of FlightSlot::started and done.
constexpr int kTimeBits = 48;
constexpr uint64_t kTimeMask = (uint64_t{1} << kTimeBits) - 1;
// How often a slot that is being written is looked at again.
constexpr int kReadTries = 3;

enum class SlotContent { kEmpty, kWhole, kTorn, kInvalid };

uint64_t LapBits(int64_t number) {
  return static_cast<uint64_t>(number / kFlightRecords) << kTimeBits;
}

// The lap in the upper bits makes a late mark fail once the slot belongs to another operation. One
// is added to the time, since 0 means none yet.
bool Mark(std::atomic<uint64_t>* word, int64_t number, int64_t nanos) {
  uint64_t not_yet = LapBits(number);
  const uint64_t after = std::min<uint64_t>(std::max<int64_t>(nanos, 0) + uint64_t{1}, kTimeMask);
  return word->compare_exchange_strong(not_yet, LapBits(number) | after, std::memory_order_acq_rel);
}

FlightSlot* SlotOf(FlightRing* ring, int64_t number) {
  return &ring->slots[static_cast<uint64_t>(number) % kFlightRecords];
}

// 0 where the word is not of the operation's lap or holds no time yet.
int64_t TimeIn(uint64_t word, const FlightRecord& record) {
  if ((word & ~kTimeMask) != LapBits(record.number) || (word & kTimeMask) == 0) return 0;
  return record.enqueued_ns + static_cast<int64_t>((word & kTimeMask) - 1);
}

bool IsPossible(const FlightRecord& record, int num_units, int64_t now_ns) {
  const auto in_order = [now_ns](int64_t earlier, int64_t later) {
    return later == 0 || (earlier > 0 && earlier <= later && later <= now_ns);
  };
  // An executor writes the ring, and nothing keeps a broken one from writing nonsense.
  return record.epoch >= 0 && record.step >= 0 && record.sequence >= 0 && record.bytes >= 0 &&
         record.unit >= -1 && record.unit < num_units &&
         record.stream <= FlightStream::kPostBackward && record.enqueued_ns > 0 &&
         record.enqueued_ns <= now_ns && in_order(record.enqueued_ns, record.started_ns) &&
         in_order(record.started_ns, record.done_ns);
}

// The acquire loads keep the second read of `guard` after them.
SlotContent TryRead(const FlightSlot& slot, int64_t index, FlightRecord* record) {
  const uint64_t guard = slot.guard.load(std::memory_order_acquire);
  if (guard == 0) return SlotContent::kEmpty;
  if (guard % 2 == 1) return SlotContent::kTorn;
  record->number = static_cast<int64_t>(guard / 2) - 1;
  if (record->number % kFlightRecords != index) return SlotContent::kInvalid;
  record->epoch = slot.epoch.load(std::memory_order_acquire);
  record->step = slot.step.load(std::memory_order_acquire);
  record->sequence = slot.sequence.load(std::memory_order_acquire);
  record->kind = static_cast<OpKind>(slot.kind.load(std::memory_order_acquire));
  record->stream = static_cast<FlightStream>(slot.stream.load(std::memory_order_acquire));
  record->unit = slot.unit.load(std::memory_order_acquire);
  record->bytes = slot.bytes.load(std::memory_order_acquire);
  record->enqueued_ns = slot.enqueued_ns.load(std::memory_order_acquire);
  // The end first: an operation that is seen to have ended is then seen to have started.
  const uint64_t done = slot.done.load(std::memory_order_acquire);
  const uint64_t started = slot.started.load(std::memory_order_acquire);
  if (slot.guard.load(std::memory_order_acquire) != guard) return SlotContent::kTorn;
  if (record->enqueued_ns < 0 || record->enqueued_ns > std::numeric_limits<int64_t>::max() / 2) {
    return SlotContent::kInvalid;  // Before anything is added to it.
  }
  record->started_ns = TimeIn(started, *record);
  record->done_ns = TimeIn(done, *record);
  return SlotContent::kWhole;
}

}  // namespace

void FormatFlightRing(FlightRing* ring) {
  ring->magic = kFlightRingMagic;
  ring->version = kFlightRingVersion;
  ring->record_bytes = sizeof(FlightSlot);
  ring->num_records = kFlightRecords;
}

absl::Status CheckFlightRing(const FlightRing& ring) {
  if (ring.magic == kFlightRingMagic && ring.version == kFlightRingVersion &&
      ring.record_bytes == sizeof(FlightSlot) && ring.num_records == kFlightRecords) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "flight ring: version ", ring.version, " with ", ring.num_records, " records of ",
      ring.record_bytes, " bytes; this program knows version ", kFlightRingVersion));
}

int64_t Enqueue(FlightRing* ring, const FlightRecord& record) {
  // A ring that an executor spoiled counts from 0 again.
  const int64_t next = ring->next.load(std::memory_order_relaxed);
  const int64_t number = next < 0 || next > std::numeric_limits<int64_t>::max() / 4 ? 0 : next;
  FlightSlot* slot = SlotOf(ring, number);
  const uint64_t whole = 2 * static_cast<uint64_t>(number) + 2;
  // The release stores keep this one before them.
  slot->guard.store(whole - 1, std::memory_order_relaxed);
  slot->epoch.store(record.epoch, std::memory_order_release);
  slot->step.store(record.step, std::memory_order_release);
  slot->sequence.store(record.sequence, std::memory_order_release);
  slot->kind.store(static_cast<uint32_t>(record.kind), std::memory_order_release);
  slot->stream.store(static_cast<uint32_t>(record.stream), std::memory_order_release);
  slot->unit.store(record.unit, std::memory_order_release);
  slot->bytes.store(record.bytes, std::memory_order_release);
  slot->enqueued_ns.store(record.enqueued_ns, std::memory_order_release);
  slot->started.store(LapBits(number), std::memory_order_release);
  slot->done.store(LapBits(number), std::memory_order_release);
  slot->guard.store(whole, std::memory_order_release);
  ring->next.store(number + 1, std::memory_order_release);
  return number;
}

void MarkStarted(FlightRing* ring, int64_t number, int64_t now_ns) {
  FlightSlot* slot = SlotOf(ring, number);
  Mark(&slot->started, number, now_ns - slot->enqueued_ns.load(std::memory_order_relaxed));
}

void MarkDone(FlightRing* ring, int64_t number, int64_t now_ns) {
  FlightSlot* slot = SlotOf(ring, number);
  const int64_t whole_ns = now_ns - slot->enqueued_ns.load(std::memory_order_relaxed);
  const uint64_t started = slot->started.load(std::memory_order_relaxed) & kTimeMask;
  const uint32_t kind = slot->kind.load(std::memory_order_relaxed);
  const int64_t bytes = slot->bytes.load(std::memory_order_relaxed);
  // What was read is of this operation if the mark succeeds.
  if (!Mark(&slot->done, number, whole_ns)) return;
  const int64_t wait_ns = started == 0 ? whole_ns : static_cast<int64_t>(started - 1);
  CountOperation(&ring->totals, kind, bytes, wait_ns, std::max<int64_t>(whole_ns - wait_ns, 0));
}

absl::StatusOr<FlightRecords> ReadFlightRing(const FlightRing& ring, int num_units) {
  absl::Status status = CheckFlightRing(ring);
  if (!status.ok()) return status;
  FlightRecords read;
  for (int64_t index = 0; index < kFlightRecords; ++index) {
    FlightRecord record;
    SlotContent content = SlotContent::kTorn;
    for (int i = 0; i < kReadTries && content == SlotContent::kTorn; ++i) {
      content = TryRead(ring.slots[index], index, &record);
    }
    if (content == SlotContent::kWhole) read.records.push_back(record);
    if (content == SlotContent::kTorn) ++read.num_torn;
    if (content == SlotContent::kInvalid) ++read.num_invalid;
  }
  // After the last slot, so that no time that was read is later.
  read.read_at_ns = MonotonicNanos();
  const auto impossible = [&](const FlightRecord& record) {
    return !IsPossible(record, num_units, read.read_at_ns);
  };
  const auto end = std::remove_if(read.records.begin(), read.records.end(), impossible);
  read.num_invalid += read.records.end() - end;
  read.records.erase(end, read.records.end());
  std::sort(read.records.begin(), read.records.end(),
            [](const FlightRecord& a, const FlightRecord& b) { return a.number < b.number; });
  return read;
}

int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

}  // namespace tessera
