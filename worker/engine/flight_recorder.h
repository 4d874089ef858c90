// The last operations of one rank: enqueued, started, done. Fixed size; survives what it records.
//
// Version 1 of the dump: one line an operation, oldest first,
//   "#<number> step=<s> seq=<q> <op> <unit> <bytes>B enqueued=<us> started=+<us>
//   done=+<us>|running"
// Times are microseconds since the recorder was made. Thread-safe.
#ifndef TESSERA_WORKER_ENGINE_FLIGHT_RECORDER_H_
#define TESSERA_WORKER_ENGINE_FLIGHT_RECORDER_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/memory/control_page.h"

namespace tessera {

struct FlightRecord {
  int64_t number = -1;
  int64_t step = 0;
  int64_t sequence = 0;
  OpKind kind = OpKind::kUnshard;
  int unit = -1;
  int64_t bytes = 0;
  absl::Time enqueued;
  absl::Time started = absl::InfiniteFuture();
  absl::Time done = absl::InfiniteFuture();
};

class FlightRecorder {
 public:
  static constexpr int64_t kCapacity = 512;

  // Returns the record's number, to be given to Started and Done. Old records are overwritten.
  int64_t Enqueued(int64_t step, int64_t sequence, OpKind kind, int unit, int64_t bytes);
  void Started(int64_t number);
  void Done(int64_t number);

  std::vector<FlightRecord> Snapshot() const;  // Oldest first.
  std::string Dump() const;

 private:
  FlightRecord* FindLocked(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  const absl::Time origin_ = absl::Now();
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<FlightRecord, kCapacity> ring_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_FLIGHT_RECORDER_H_
