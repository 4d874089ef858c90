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

}  // namespace tessera
