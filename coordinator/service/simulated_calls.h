// Unary calls on their way in a simulation: each arrives once or never, at any time, also after
// later ones and after its caller is gone. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_CALLS_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_CALLS_H_

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "coordinator/service/simulated_dice.h"

namespace tessera::coordinator {

class SimulatedCalls {
 public:
  explicit SimulatedCalls(SimulatedDice* dice) : dice_(dice) {}

  // `serve` is what the coordinator does with it; whether the caller learns that is its matter.
  void Send(std::function<void()> serve) {
    if (!loses_ || !dice_->OneIn(10)) calls_.push_back(std::move(serve));
  }
  // One of them arrives.
  void Deliver() {
    if (calls_.empty()) return;
    // Mostly the first one.
    const size_t i = dice_->OneIn(4) ? dice_->Roll(calls_.size()) : 0;
    const std::function<void()> serve = std::move(calls_[i]);
    calls_.erase(calls_.begin() + i);
    serve();
  }
  void Clear() { calls_.clear(); }
  void Lose(bool loses) { loses_ = loses; }
  bool LosesReply() { return loses_ && dice_->OneIn(8); }

 private:
  SimulatedDice* const dice_;
  bool loses_ = true;
  std::vector<std::function<void()>> calls_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_CALLS_H_
