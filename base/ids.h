// Strong ids and counters: a Rank cannot be passed where an Epoch is meant.
//
// Each is a plain 64-bit (or string) value with comparison, hashing and text. Thread-compatible.
// Arithmetic is spelled out by the caller: `Step(step.value() + 1)`.
#ifndef TESSERA_BASE_IDS_H_
#define TESSERA_BASE_IDS_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

namespace tessera {

template <typename Tag, typename Value = int64_t>
class StrongId {
 public:
  using ValueType = Value;

  constexpr StrongId() = default;
  explicit constexpr StrongId(Value value) : value_(std::move(value)) {}

  constexpr const Value& value() const { return value_; }

  friend bool operator==(const StrongId& a, const StrongId& b) { return a.value_ == b.value_; }
  friend bool operator!=(const StrongId& a, const StrongId& b) { return a.value_ != b.value_; }
  friend bool operator<(const StrongId& a, const StrongId& b) { return a.value_ < b.value_; }
  friend bool operator<=(const StrongId& a, const StrongId& b) { return a.value_ <= b.value_; }
  friend bool operator>(const StrongId& a, const StrongId& b) { return a.value_ > b.value_; }
  friend bool operator>=(const StrongId& a, const StrongId& b) { return a.value_ >= b.value_; }

  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, const StrongId& id) { return os << id.value_; }

 private:
  Value value_{};
};

using Rank = StrongId<struct RankTag>;    // [0, world_size)
using Epoch = StrongId<struct EpochTag>;  // one membership of a job; starts at 1
// One life of a job: a job that was deleted and made again under its name has another. Never used
// twice; a later one is larger.
using Generation = StrongId<struct GenerationTag>;
using Step = StrongId<struct StepTag>;                // number of committed optimizer steps
using Incarnation = StrongId<struct IncarnationTag>;  // one life of a worker or an attachment
using UnitId = StrongId<struct UnitIdTag>;            // index of a unit in its job's model
using JobId = StrongId<struct JobIdTag, std::string>;
using WorkerId = StrongId<struct WorkerIdTag, std::string>;

}  // namespace tessera

#endif  // TESSERA_BASE_IDS_H_
