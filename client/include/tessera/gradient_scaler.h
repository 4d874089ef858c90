// Loss scaling, for gradients that travel in a type of little range.
//
//   GradientScaler scaler;
//   loss = loss * scaler.scale();  backward
//   ASSIGN_OR_RETURN(StepResult result, session->Step(scaler.Scaled(options)));
//   scaler.Update(result);
//
// The step divides by the scale before it measures and clips. Where any rank's gradient overflowed,
// every rank skips the step and the scale shrinks; after enough steps without one it grows. Ranks
// see the same results, so their scales stay equal; a new trainer takes over another's state.
// A value; thread-compatible. Source: torch.cuda.amp.GradScaler.
#ifndef TESSERA_GRADIENT_SCALER_H_
#define TESSERA_GRADIENT_SCALER_H_

#include "tessera/session.h"

namespace tessera {

class GradientScaler {
 public:
  struct Options {
    double initial_scale = 65536;
    double growth_factor = 2;     // Above 1.
    double backoff_factor = 0.5;  // Between 0 and 1.
    int growth_interval = 2000;   // Steps in a row without an overflow.
  };
  // What a checkpoint keeps.
  struct State {
    double scale = 0;
    int steps_since_change = 0;
  };

  GradientScaler() : GradientScaler(Options()) {}
  explicit GradientScaler(const Options& options)
      : options_(options), state_{options.initial_scale, 0} {}

  double scale() const { return state_.scale; }
  // `options` with the scale taken out of the gradient, and overflows skipped.
  StepOptions Scaled(StepOptions options) const;
  void Update(const StepResult& result);

  const State& state() const { return state_; }
  void Restore(const State& state) { state_ = state; }

 private:
  Options options_;
  State state_;
};

}  // namespace tessera

#endif  // TESSERA_GRADIENT_SCALER_H_
