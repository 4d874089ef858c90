#include "tessera/gradient_scaler.h"

#include <cmath>

namespace tessera {

StepOptions GradientScaler::Scaled(StepOptions options) const {
  options.gradient_divisor *= state_.scale;
  // Every rank sees the same result, so all change their scale alike.
  options.skip_non_finite = true;
  return options;
}

void GradientScaler::Update(const StepResult& result) {
  if (result.skipped) {
    state_ = {state_.scale * options_.backoff_factor, 0};
  } else if (++state_.steps_since_change == options_.growth_interval) {
    const double grown = state_.scale * options_.growth_factor;
    // A scale that fp32 does not hold would make every gradient infinite.
    state_ = {std::isfinite(static_cast<float>(grown)) ? grown : state_.scale, 0};
  }
}

}  // namespace tessera
