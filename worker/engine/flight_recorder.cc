#include "worker/engine/flight_recorder.h"

namespace tessera {

int64_t FlightRecorder::Enqueued(int64_t step, int64_t sequence, OpKind kind, int unit,
                                 int64_t bytes) {
  FlightRecord record;
  record.epoch = epoch_.value();
  record.step = step;
  record.sequence = sequence;
  record.kind = kind;
  record.stream = kind == OpKind::kReduce || (kind == OpKind::kUpdate && unit >= 0)
                      ? FlightStream::kPostBackward
                      : FlightStream::kEngine;
  record.unit = unit;
  record.bytes = bytes;
  record.enqueued_ns = MonotonicNanos();
  return Enqueue(ring_, record);
}

void FlightRecorder::StepEnded(double gradient_norm) {
  const int64_t now_ns = MonotonicNanos();
  // Not of the first step: what came before it is no step's time.
  if (step_ended_ns_ != 0) CountStep(&ring_->totals, now_ns - step_ended_ns_, gradient_norm);
  step_ended_ns_ = now_ns;
}

}  // namespace tessera
