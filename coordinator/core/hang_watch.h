// Finds the ranks of one epoch that the others wait for. Pure: time is an argument. Value;
// thread-compatible.
//
//   place of a rank    how many operations of (step, pass) it has come to: has issued, or has
//                      announced. Ranks share the order, so that places can be compared
//   behind             at the lowest of all places, and another rank is further and has come to an
//                      operation of its pass
//   missing            behind at the same place for the patience, without a break
//
// Ranks between the lowest and the highest place may wait for the lowest themselves. Ranks that all
// are at one place are not behind.
#ifndef TESSERA_COORDINATOR_CORE_HANG_WATCH_H_
#define TESSERA_COORDINATOR_CORE_HANG_WATCH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

class HangWatch {
 public:
  HangWatch() = default;
  explicit HangWatch(int32_t world_size) : ranks_(world_size) {}

  // `rank` has come to `place`. Places only grow in an epoch, so that an earlier one is ignored.
  // Requires 0 <= rank < world_size.
  void Heard(Rank rank, const OrderPosition& place);

  // Whether Look may find something: a rank has moved, or a patience ends.
  bool IsDue(absl::Time now) const { return has_moved_ || now >= next_look_; }
  struct Found {
    std::vector<Rank> missing;  // Since this call.
    std::vector<Rank> arrived;  // They were missing until this call.
  };
  // Visits each rank once.
  Found Look(absl::Time now, absl::Duration patience);
  // No rank could be heard for this time, because the coordinator itself stood still.
  void Postpone(absl::Duration pause);
  // These ranks, which are behind, have the whole patience again and are not missing.
  void Forgive(const std::vector<Rank>& ranks, absl::Time now);

  const OrderPosition& PlaceOf(Rank rank) const { return ranks_[rank.value()].place; }
  bool IsMissing(Rank rank) const { return ranks_[rank.value()].is_missing; }

 private:
  struct State {
    OrderPosition place;
    std::optional<absl::Time> behind_since;  // At this place.
    bool is_missing = false;
    bool has_arrived = false;  // It was missing and has moved; the next Look says so.
  };

  // Null: no rank is behind.
  const OrderPosition* PlaceOfLast() const;

  std::vector<State> ranks_;
  bool has_moved_ = false;
  absl::Time next_look_ = absl::InfiniteFuture();
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_HANG_WATCH_H_
