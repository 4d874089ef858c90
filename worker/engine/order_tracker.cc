#include "worker/engine/order_tracker.h"

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
  following_ = Check(entry) == OrderVerdict::kProceed;
  issued_.push_back(entry);
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.kind));
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.unit));
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.dtype));
  hash_ = Mix(hash_, static_cast<uint64_t>(entry.count_elements));
}

void OrderTracker::UpcomingUnshards(int limit, std::vector<int>* units) const {
  units->clear();
  if (!following_) return;
  for (size_t at = issued_.size(); at < recorded_.size(); ++at) {
    if (static_cast<int>(units->size()) >= limit) return;
    if (recorded_[at].kind == OpKind::kUnshard) units->push_back(recorded_[at].unit);
  }
}

void OrderTracker::StepCommitted() {
  recorded_.swap(issued_);
  WriteCommitted();
}

void OrderTracker::WriteCommitted() {
  issued_.clear();
  following_ = true;
  hash_ = kHashSeed;
}

}  // namespace tessera
