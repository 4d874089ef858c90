#include "coordinator/core/hang_watch.h"

#include <algorithm>
#include <utility>

namespace tessera::coordinator {

void HangWatch::Heard(Rank rank, const OrderPosition& place) {
  State& state = ranks_[rank.value()];
  // A heartbeat can tell an older place than an announcement that came before it.
  if (!(state.place < place)) return;
  state.place = place;
  state.behind_since.reset();
  state.has_arrived |= state.is_missing;
  state.is_missing = false;
  has_moved_ = true;
}

const OrderPosition* HangWatch::PlaceOfLast() const {
  const auto is_before = [](const State& a, const State& b) { return a.place < b.place; };
  const auto [last, first] = std::minmax_element(ranks_.begin(), ranks_.end(), is_before);
  if (first == ranks_.end() || !(last->place < first->place)) return nullptr;
  // A rank at the beginning of a step has done the one before, for which it waited for all others.
  const bool has_come_to_an_operation = first->place.sequence > 0 || first->place.pass > 0;
  return has_come_to_an_operation ? &last->place : nullptr;
}

HangWatch::Found HangWatch::Look(absl::Time now, absl::Duration patience) {
  has_moved_ = false;
  next_look_ = absl::InfiniteFuture();
  Found found;
  const OrderPosition* last = PlaceOfLast();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    State& state = ranks_[i];
    if (std::exchange(state.has_arrived, false)) found.arrived.push_back(Rank(i));
    // Places only grow, so that a rank which was behind is until it moves.
    if (last == nullptr || !(state.place == *last) || state.is_missing) continue;
    if (!state.behind_since.has_value()) state.behind_since = now;
    if (now - *state.behind_since >= patience) {
      state.is_missing = true;
      found.missing.push_back(Rank(i));
    } else {
      next_look_ = std::min(next_look_, *state.behind_since + patience);
    }
  }
  return found;
}

void HangWatch::Postpone(absl::Duration pause) {
  for (State& state : ranks_) {
    if (state.behind_since.has_value()) *state.behind_since += pause;
  }
  next_look_ += pause;
}

void HangWatch::Forgive(const std::vector<Rank>& ranks, absl::Time now) {
  for (const Rank rank : ranks) {
    ranks_[rank.value()].behind_since = now;
    ranks_[rank.value()].is_missing = false;
  }
  has_moved_ = true;
}

}  // namespace tessera::coordinator
