// The seeded dice of a simulation. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_DICE_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_DICE_H_

#include <cstdint>
#include <random>

namespace tessera::coordinator {

class SimulatedDice {
 public:
  explicit SimulatedDice(uint32_t seed) : random_(seed) {}
  // In [0, sides).
  int Roll(size_t sides) { return static_cast<int>(random_() % sides); }
  bool OneIn(size_t sides) { return Roll(sides) == 0; }

 private:
  std::mt19937 random_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_DICE_H_
