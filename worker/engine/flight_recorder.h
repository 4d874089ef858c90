// Writes the operations of one rank into its flight ring: enqueued, started, done.
//
// The ring is the worker's memory and outlives the recorder; a successor continues where this one
// ended. Enqueued is called by the engine's thread, Started and Done by it or the stream's. All
// are wait-free.
#ifndef TESSERA_WORKER_ENGINE_FLIGHT_RECORDER_H_
#define TESSERA_WORKER_ENGINE_FLIGHT_RECORDER_H_

#include <cstdint>

#include "base/ids.h"
#include "shm/flight_ring.h"

namespace tessera {

class FlightRecorder {
 public:
  // `ring` is formatted, and outlives the recorder.
  explicit FlightRecorder(FlightRing* ring) : ring_(ring) {}

  // For the operations enqueued from now on. Not while an engine runs.
  void BeginEpoch(Epoch epoch) {
    epoch_ = epoch;
    step_ended_ns_ = 0;
  }

  // Returns the operation's number, to be given to Started and Done.
  int64_t Enqueued(int64_t step, int64_t sequence, OpKind kind, int unit, int64_t bytes);
  // No effect once the operation was overwritten.
  void Started(int64_t number) { MarkStarted(ring_, number, MonotonicNanos()); }
  void Done(int64_t number) { MarkDone(ring_, number, MonotonicNanos()); }

  // Both by the engine's thread.
  void WaitedForTrainer(int64_t nanos) { CountTrainerWait(&ring_->totals, nanos); }
  // The first step of an epoch has no beginning that is known, and is not counted.
  void StepEnded(double gradient_norm);

 private:
  FlightRing* const ring_;
  Epoch epoch_;
  int64_t step_ended_ns_ = 0;  // The step before; 0: none in this epoch.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_FLIGHT_RECORDER_H_
