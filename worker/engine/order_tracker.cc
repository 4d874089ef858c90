#include "worker/engine/order_tracker.h"

#include <algorithm>

namespace tessera {
namespace {

// FNV-1a over the bytes of one value; stable over machines.
uint64_t Mix(uint64_t hash, uint64_t value) {
  for (int i = 0; i < 8; ++i) {
    hash ^= (value >> (8 * i)) & 0xff;
    hash *= 0x100000001b3;
  }
  return hash;
}

}  // namespace

OrderVerdict OrderTracker::Check(const OrderEntry& entry) const {
  const size_t position = issued_.size();
  const bool as_recorded =
      following_ && position < recorded_.size() && recorded_[position] == entry;
  return as_recorded ? OrderVerdict::kProceed : OrderVerdict::kAsk;
}

void OrderTracker::Issued(const OrderEntry& entry) {
  // One operation off the record ends following until the step's end: what comes later asks again.
  following_ = Check(entry) == OrderVerdict::kProceed;
  issued_.push_back(entry);
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.kind));
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.unit));
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.dtype));
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.count_elements));
}

void OrderTracker::UpcomingUnshards(const GatherLimit& limit, std::vector<int>* units) const {
  units->clear();
  if (!following_) return;
  int64_t bytes = 0;
  for (size_t at = issued_.size(); at < recorded_.size(); ++at) {
    if (static_cast<int>(units->size()) >= limit.max_units) return;
    if (recorded_[at].kind != OpKind::kUnshard) continue;
    const int unit = static_cast<int>(recorded_[at].unit);
    // A unit that comes twice occupies memory once.
    if (limit.max_bytes > 0 && std::find(units->begin(), units->end(), unit) == units->end()) {
      bytes += limit.unit_bytes[unit];
      if (bytes > limit.max_bytes) return;
    }
    units->push_back(unit);
  }
}

bool OrderTracker::ForwardEnded() {
  const size_t begin = forward_end_, end = issued_.size();
  const auto at = [this](size_t position) { return issued_.begin() + position; };
  // A forward that repeats the one before it is evaluation. The order is cut there, so that it does
  // not grow without end.
  const bool repeats = end > begin && end - begin == forward_end_ - forward_begin_ &&
                       std::equal(at(begin), at(end), at(forward_begin_));
  forward_begin_ = begin;
  forward_end_ = end;
  // In evaluation each forward ends a pass: the record is then of one forward.
  return pass_ > 0 || repeats;
}

void OrderTracker::PassEnded() {
  recorded_.swap(issued_);
  issued_.clear();
  following_ = true;
  ++pass_;
  forward_begin_ = forward_end_ = 0;
}

void OrderTracker::StepCommitted() {
  // This step's order is the record of the next.
  recorded_.swap(issued_);
  WriteCommitted();
}

void OrderTracker::WriteCommitted() {
  issued_.clear();
  following_ = true;
  hash_ = kHashSeed;
  pass_ = 0;
  forward_begin_ = forward_end_ = 0;
}

}  // namespace tessera
