// One rank's execution order: what it may do without asking, and what it really did.
//
//   first step of an epoch:  every entry asks, and is recorded once all ranks agreed
//   later steps:             entry == recorded[position]  -> proceed, no message
//                            first difference             -> ask, here and for the rest of the step
//
// A rank that follows its record needs to ask nobody, since all recorded the same. The hash chains
// every entry of the step, in order.
//
// Evaluation takes no steps, so a step's order could grow without an end. Forwards that repeat cut
// it into passes, each of which is checked against the one before, as a step is:
//
//   F F cut | F cut | F cut | ... | forward backward step     one ask for each cut of the first two
//
// Pure logic; thread-compatible.
#ifndef TESSERA_WORKER_ENGINE_ORDER_TRACKER_H_
#define TESSERA_WORKER_ENGINE_ORDER_TRACKER_H_

#include <cstdint>
#include <vector>

#include "layout/dtype.h"
#include "shm/control_page.h"

namespace tessera {

struct OrderEntry {
  OpKind kind = OpKind::kUnshard;
  int64_t unit = -1;  // -1: none.
  DType dtype = DType::kFp32;
  int64_t count_elements = 0;

  friend bool operator==(const OrderEntry& a, const OrderEntry& b) {
    return a.kind == b.kind && a.unit == b.unit && a.dtype == b.dtype &&
           a.count_elements == b.count_elements;
  }
};

// Where in the order of an epoch: the step, the passes in it that were cut off before, and the
// operations in this one.
struct OrderPlace {
  int64_t step = 0;
  int64_t pass = 0;
  int64_t sequence = 0;

  friend bool operator==(const OrderPlace& a, const OrderPlace& b) {
    return a.step == b.step && a.pass == b.pass && a.sequence == b.sequence;
  }
};

// How far ahead of the trainer units may be gathered.
struct GatherLimit {
  int max_units = 0;
  int64_t max_bytes = 0;            // Of different units together; 0: any number.
  std::vector<int64_t> unit_bytes;  // By unit.
};

enum class OrderVerdict { kProceed, kAsk };

class OrderTracker {
 public:
  // The rank is about to issue `entry` at position sequence().
  OrderVerdict Check(const OrderEntry& entry) const;
  // `entry` was issued (after a release, where it had to ask); the position advances.
  void Issued(const OrderEntry& entry);
  // A forward ended that no backward follows. Whether the order is to be cut here, which all ranks
  // decide alike: the forward was the same as the one before, or the pass began with a cut.
  bool ForwardEnded();
  // The cut was issued as an entry: what was issued is the record that the next pass follows.
  void PassEnded();
  // The step was committed: what was issued is the record that the next step follows.
  void StepCommitted();
  // A write of parameters was committed: the record stays as it is, and starts again.
  void WriteCommitted();

  // Replaces `units` by those of the next unshards in the record, as many as `limit` permits: what
  // may be gathered ahead. None while this step differs from the record.
  void UpcomingUnshards(const GatherLimit& limit, std::vector<int>* units) const;

  int64_t pass() const { return pass_; }
  int64_t sequence() const { return static_cast<int64_t>(issued_.size()); }
  uint64_t hash() const { return hash_; }

 private:
  static constexpr uint64_t kHashSeed = 0xcbf29ce484222325;

  std::vector<OrderEntry> recorded_;
  std::vector<OrderEntry> issued_;  // In this step.
  bool following_ = false;          // Nothing issued in this step differed from the record.
  uint64_t hash_ = kHashSeed;
  int64_t pass_ = 0;
  // Of this pass: where the last forward that ended began, and where it ended.
  size_t forward_begin_ = 0, forward_end_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_ORDER_TRACKER_H_
