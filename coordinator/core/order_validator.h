// Makes sure that the ranks of one epoch issue the same operations in the same order. Value;
// thread-compatible.
//
//   recording step    every rank announces each position and waits; when all announced the same,
//                     all are released and the entry is recorded
//   later steps       a rank that follows its record asks nobody; one that deviates announces:
//                       all deviate in the same way   -> released, and the record changes from
//                                                        there on
//                       another rank announces other, -> mismatch, naming both ranks
//                       or went past the position by
//                       its record
//
// A position is (step, pass, sequence): `sequence` counts the operations that a rank issued before
// it in the pass. The rules for steps also hold for the passes of a step. After a mismatch nothing
// is released: each call returns the same mismatch, until a new epoch creates its own validator.
// Nothing here times out; a rank that reports no progress keeps the others waiting.
#ifndef TESSERA_COORDINATOR_CORE_ORDER_VALIDATOR_H_
#define TESSERA_COORDINATOR_CORE_ORDER_VALIDATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/core/types.h"
#include "job/job_config.h"

namespace tessera::coordinator {

struct OrderVerdict {
  std::vector<Rank> released;  // These may continue at `position`.
  OrderPosition position;
  std::optional<OrderEntry> recorded;   // Newly agreed at `position`.
  std::optional<std::string> mismatch;  // Names the ranks that differ at `position`, and how.
};

class OrderValidator {
 public:
  OrderValidator() = default;
  OrderValidator(int32_t world_size, JobSpecPtr spec);

  // Restores what was agreed before a restart. Call it in any order, then FinishRestore once.
  void Restore(const OrderPosition& position, const OrderEntry& entry);
  void FinishRestore();

  // `rank` waits at `position` to do `entry`. Requires 0 <= rank < world_size and
  // 0 <= sequence < kMaxSequence.
  OrderVerdict Announce(Rank rank, const OrderPosition& position, const OrderEntry& entry);
  // `rank` has issued `position.sequence` operations of `position.step` so far.
  OrderVerdict Progress(Rank rank, const OrderPosition& position);
  // `rank` has finished `step`.
  OrderVerdict Finished(Rank rank, Step step);

  // What ranks do at `position`: as they announced, or have it in their record. Null: not known.
  const OrderEntry* EntryAt(const OrderPosition& position) const;

  int64_t num_recorded() const { return static_cast<int64_t>(record_.size()); }

 private:
  struct Recorded {
    OrderPosition at;  // Where it was agreed last.
    OrderEntry entry;
  };
  using Announced = std::map<Rank, OrderEntry>;

  OrderVerdict Latched(absl::FunctionRef<OrderVerdict()> judge);
  OrderVerdict DoAnnounce(Rank rank, const OrderPosition& position, const OrderEntry& entry);
  OrderVerdict DoProgress(Rank rank, const OrderPosition& position);
  const Recorded* RecordAt(int64_t sequence) const;
  void Withdraw(Rank rank);
  OrderVerdict Agree(const OrderPosition& position);
  OrderVerdict Mismatch(const OrderPosition& position, Rank a, const std::string& what_a, Rank b,
                        const std::string& what_b) const;
  // A mismatch if `rank` did not announce there and is past `position`.
  OrderVerdict CheckPassed(Rank rank, const OrderPosition& position) const;
  std::string WhatRankDid(const OrderPosition& position) const;

  int32_t world_size_ = 1;
  JobSpecPtr spec_;
  OrderPosition recorded_at_;                    // The newest.
  std::vector<std::optional<Recorded>> record_;  // By sequence; nullopt: lost in a restart.
  std::map<OrderPosition, Announced> pending_;
  std::map<Rank, OrderPosition> waiting_at_;
  std::optional<OrderVerdict> mismatch_;  // The first.
  std::vector<OrderPosition> progress_;   // By rank: everything before it has been issued.
};

// "unshard unit 'blocks.2' (parameters a, b, c and 3 more; bf16, 4096 elements)".
std::string DescribeEntry(const OrderEntry& entry, const JobSpec& spec);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_ORDER_VALIDATOR_H_
