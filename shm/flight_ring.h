// The last operations of one rank, in shared memory that outlives the executor that writes them.
//
//   executor: engine thread ── Enqueue ──► slot[number % 1024]         ──► worker: ReadFlightRing
//             engine, stream ── MarkStarted, MarkDone ──► times of the slot
//
// Each operation has a number; numbers continue across epochs and executors. A slot's `guard` is
// 2 * number + 1 while it is being filled and 2 * number + 2 once it is whole, so a reader in
// another process knows a torn one, also of a writer that was killed. The two times that come
// later carry the low bits of the slot's lap, so that a time that comes too late, when the slot
// has its next operation already, has no effect. Layout: docs/formats/flight_ring.md.
//
// One thread at a time enqueues; any thread marks; any number of readers. Writers are wait-free
// and make no system call but for the clock. Readers take nothing for granted: an executor may
// have written anything. Times are nanoseconds of CLOCK_MONOTONIC.
#ifndef TESSERA_SHM_FLIGHT_RING_H_
#define TESSERA_SHM_FLIGHT_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shm/control_page.h"
#include "shm/rank_totals.h"

namespace tessera {

inline constexpr uint64_t kFlightRingMagic = 0x474E495254484C46;  // "FLHTRING" in memory.
inline constexpr uint32_t kFlightRingVersion = 2;
inline constexpr int64_t kFlightRecords = 1024;

enum class FlightStream : uint32_t { kEngine = 0, kPostBackward = 1 };

struct alignas(128) FlightSlot {
  std::atomic<uint64_t> guard;  // 0: never used.
  std::atomic<int64_t> epoch;
  std::atomic<int64_t> step;
  std::atomic<int64_t> sequence;  // Position in the step's execution order.
  std::atomic<uint32_t> kind;     // OpKind.
  std::atomic<uint32_t> stream;   // FlightStream.
  std::atomic<int64_t> bytes;
  std::atomic<int64_t> enqueued_ns;
  std::atomic<uint64_t> started;  // lap << 48 | 1 + nanoseconds after enqueued_ns; low part 0: not
  std::atomic<uint64_t> done;     // yet.
  std::atomic<int32_t> unit;      // -1: none.
};

struct FlightRing {
  uint64_t magic;
  uint32_t version;
  uint32_t record_bytes;
  uint32_t num_records;
  alignas(128) std::atomic<int64_t> next;  // Number of the next operation.
  FlightSlot slots[kFlightRecords];
  RankTotals totals;  // Of all operations that were done.
};
static_assert(sizeof(FlightSlot) == 128 && offsetof(FlightSlot, unit) == 72, "layout version 2");
static_assert(offsetof(FlightRing, slots) == 256 && offsetof(FlightRing, totals) == 131328 &&
                  sizeof(RankTotals) == 1280,
              "layout version 2");

// One operation, as it is put in and as it is read.
struct FlightRecord {
  int64_t number = -1;
  int64_t epoch = 0;
  int64_t step = 0;
  int64_t sequence = 0;
  OpKind kind = OpKind::kUnshard;  // Read: may be none of the enumerators; see OpName.
  FlightStream stream = FlightStream::kEngine;
  int unit = -1;
  int64_t bytes = 0;
  int64_t enqueued_ns = 0;
  int64_t started_ns = 0;  // 0: not yet.
  int64_t done_ns = 0;     // 0: not yet.
};

// What ReadFlightRing could and could not read.
struct FlightRecords {
  std::vector<FlightRecord> records;  // Oldest first.
  int num_torn = 0;                   // Being written, or their writer was killed meanwhile.
  int num_invalid = 0;                // Nothing that a working executor writes.
  int64_t read_at_ns = 0;             // After all of them were read.
};

// Makes zero-filled memory an empty ring.
void FormatFlightRing(FlightRing* ring);
// Errors: InvalidArgument  not a ring, or one of another version or size.
absl::Status CheckFlightRing(const FlightRing& ring);

// Fills the next slot with all of `record` but its number, start and end; returns its number.
int64_t Enqueue(FlightRing* ring, const FlightRecord& record);
// No effect where the slot holds another operation by now, or on the second call. MarkDone adds the
// operation to the totals.
void MarkStarted(FlightRing* ring, int64_t number, int64_t now_ns);
void MarkDone(FlightRing* ring, int64_t number, int64_t now_ns);

// Skips, and counts, slots that are torn or hold what cannot be: a unit that is none of
// `num_units`, negative quantities, times in the future or in the wrong order.
// Errors: as CheckFlightRing.
absl::StatusOr<FlightRecords> ReadFlightRing(const FlightRing& ring, int num_units);

// The clock of all of these times; the same in all processes of a host.
int64_t MonotonicNanos();

}  // namespace tessera

#endif  // TESSERA_SHM_FLIGHT_RING_H_
