#include "worker/engine/flight_recorder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {

int64_t FlightRecorder::Enqueued(int64_t step, int64_t sequence, OpKind kind, int unit,
                                 int64_t bytes) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mu_);
  const int64_t number = next_++;
  FlightRecord& record = ring_[number % kCapacity];
  record = FlightRecord();
  record.number = number;
  record.step = step;
  record.sequence = sequence;
  record.kind = kind;
  record.unit = unit;
  record.bytes = bytes;
  record.enqueued = now;
  return number;
}

FlightRecord* FlightRecorder::FindLocked(int64_t number) {
  FlightRecord& record = ring_[number % kCapacity];
  return record.number == number ? &record : nullptr;
}

void FlightRecorder::Started(int64_t number) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mu_);
  if (FlightRecord* record = FindLocked(number); record != nullptr) record->started = now;
}

void FlightRecorder::Done(int64_t number) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mu_);
  if (FlightRecord* record = FindLocked(number); record != nullptr) record->done = now;
}

std::vector<FlightRecord> FlightRecorder::Snapshot() const {
  absl::MutexLock lock(&mu_);
  std::vector<FlightRecord> records;
  for (int64_t number = std::max<int64_t>(0, next_ - kCapacity); number < next_; ++number) {
    records.push_back(ring_[number % kCapacity]);
  }
  return records;
}

std::string FlightRecorder::Dump() const {
  std::string text = "flight recorder v1\n";
  for (const FlightRecord& record : Snapshot()) {
    const auto micros = [](absl::Duration d) { return absl::ToInt64Microseconds(d); };
    absl::StrAppend(&text, "#", record.number, " step=", record.step, " seq=", record.sequence, " ",
                    OpName(record.kind), " ", record.unit, " ", record.bytes,
                    "B enqueued=", micros(record.enqueued - origin_));
    if (record.started != absl::InfiniteFuture()) {
      absl::StrAppend(&text, " started=+", micros(record.started - record.enqueued));
    }
    if (record.done != absl::InfiniteFuture()) {
      absl::StrAppend(&text, " done=+", micros(record.done - record.enqueued), "\n");
    } else {
      absl::StrAppend(&text, " running\n");
    }
  }
  return text;
}

}  // namespace tessera
