#include "client/units/window_rules.h"

#include <utility>

#include "layout/strategy.h"

namespace tessera {

WindowRules::WindowRules(const std::vector<UnitLayout>& units, int root)
    : sync_(units.size(), true), root_(root) {
  for (const UnitLayout& unit : units) {
    strategies_.push_back(unit.strategy);
    reshard_forward_.push_back(tessera::ReshardsAfterForward(unit.strategy));
  }
}

void WindowRules::SetReshardAfterForward(int unit, bool reshard) {
  // A unit that never reshards has no choice.
  if (!tessera::ReshardsAfterBackward(strategies_[unit])) return;
  reshard_forward_[unit] = reshard;
  if (unit == root_) root_was_told_ = true;
}

std::vector<bool> WindowRules::ExchangeSync(std::vector<bool> sync) {
  sync.resize(sync_.size(), false);
  return std::exchange(sync_, std::move(sync));
}

bool WindowRules::ReshardsAfterForward(int unit) const {
  // The root is needed first in backward, so it stays open unless the trainer says otherwise.
  return reshard_forward_[unit] && (unit != root_ || root_was_told_);
}

// Where gradients only accumulate, the next forward needs the same parameters.
bool WindowRules::ReshardsAfterBackward(int unit) const {
  return reshard_forward_[unit] ||
         (tessera::ReshardsAfterBackward(strategies_[unit]) && sync_[unit]);
}

}  // namespace tessera
