#include "client/units/prefetch_plan.h"

#include <algorithm>

namespace tessera {

PrefetchPlan::PrefetchPlan(BackwardPrefetch backward, bool forward, int num_units)
    : backward_(backward),
      forward_(forward),
      forward_lists_(num_units),
      backward_lists_(num_units),
      forward_begun_(num_units, false),
      in_backward_(num_units),
      backward_begun_(num_units, false) {}

void PrefetchPlan::BeginForward() {
  if (!recorded_) began_.clear();  // An exception may have ended the last one.
  forward_begun_.assign(forward_begun_.size(), false);
  // Shared: forwards that still have a backward keep their own order.
  ended_ = std::make_shared<std::vector<int>>();
}

std::vector<int> PrefetchPlan::PreForward(int unit) {
  const bool first = !forward_begun_[unit];
  forward_begun_[unit] = true;
  // In the order of the first forward, which later ones are assumed to repeat.
  if (!recorded_ && first) began_.push_back(unit);
  if (!forward_lists_[unit].empty()) return forward_lists_[unit];
  if (!forward_ || !recorded_) return {};
  const auto here = std::find(began_.begin(), began_.end(), unit);
  if (here == began_.end() || here + 1 == began_.end()) return {};
  // One that has been through its forward will not be needed again.
  if (forward_begun_[*(here + 1)]) return {};
  return {*(here + 1)};
}

void PrefetchPlan::PostForward(int unit) { ended_->push_back(unit); }

void PrefetchPlan::EndForward() { recorded_ = true; }

PrefetchPlan::Use PrefetchPlan::LastUse(int unit) const {
  // From the end: of several uses the last is the first in backward.
  for (size_t at = ended_->size(); at > 0; --at) {
    if ((*ended_)[at - 1] == unit) return {ended_, at - 1};
  }
  return {ended_, 0};
}

std::vector<int> PrefetchPlan::UnitBefore(const Use& use) const {
  if (use.ended == nullptr || use.position == 0) return {};
  const int unit = (*use.ended)[use.position - 1];
  if (backward_begun_[unit]) return {};  // It is unsharded, or was as long as needed.
  return {unit};
}

std::vector<int> PrefetchPlan::PreBackward(int unit, const Use& use) {
  backward_begun_[unit] = true;
  Use& under_way = in_backward_[unit];
  // Each output of a unit says so.
  if (under_way.ended == use.ended && under_way.position == use.position) return {};
  under_way = use;
  if (!backward_lists_[unit].empty()) return backward_lists_[unit];
  return backward_ == BackwardPrefetch::kPre ? UnitBefore(use) : std::vector<int>();
}

std::vector<int> PrefetchPlan::PostBackward(int unit) {
  if (backward_ != BackwardPrefetch::kPost || !backward_lists_[unit].empty()) return {};
  return UnitBefore(in_backward_[unit]);
}

void PrefetchPlan::EndBackward() {
  in_backward_.assign(in_backward_.size(), Use());
  backward_begun_.assign(backward_begun_.size(), false);
}

}  // namespace tessera
