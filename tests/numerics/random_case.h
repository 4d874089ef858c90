// Random jobs and random steps of them, from a seed: the same on every rank, since each rank makes
// them itself.
//
//   a job   model (units in fp32 and fp64, shapes, ties, frozen parameters), world size, strategies
//           and dtypes of the job and of units, layout, optimizer, param groups, clipping, gradient
//           slots
//   a step  micro-batches, which of them are reduced, which ranks give a gradient to what, windows
//           in full precision, divisor, weights, hyper-parameters, a NaN or an infinity, dropped
//           gradients
#ifndef TESSERA_TESTS_NUMERICS_RANDOM_CASE_H_
#define TESSERA_TESTS_NUMERICS_RANDOM_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "job/job_config.h"
#include "layout/tensor_spec.h"
#include "tessera/session_options.h"

namespace tessera::numerics {

// A stream of numbers that depends on nothing but its seeds.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t which) : state_(Mixed(seed * 0x9E3779B97F4A7C15 + which)) {}
  uint64_t Next() { return Mixed(state_ += 0x9E3779B97F4A7C15); }
  int Below(int count) { return static_cast<int>(Next() % static_cast<uint64_t>(count)); }
  bool OneIn(int count) { return Below(count) == 0; }
  float Uniform() {  // In [-1, 1), a multiple of 2^-23.
    return static_cast<float>(static_cast<int32_t>(Next() >> 40) - (1 << 23)) / (1 << 23);
  }
  template <typename T>
  T Of(const std::vector<T>& choices) {
    return choices[Below(static_cast<int>(choices.size()))];
  }

 private:
  static uint64_t Mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  uint64_t state_;
};

struct RandomJob {
  ModelSpec model;
  JobConfig config;
  std::vector<int> ranks_by_worker;
};

// On one worker.
RandomJob MakeJob(uint64_t seed);
// The same on two or three workers; hybrid, one in three, where it can be.
RandomJob MakeJobOfSeveralWorkers(uint64_t seed);

// One line, for a failure.
std::string Describe(const RandomJob& job);

// One accumulation: a forward and a backward.
struct MicroBatch {
  bool reduces = true;
  std::vector<std::vector<char>> gives;  // By parameter, numbered over the model, and rank.
};

struct RandomStep {
  std::vector<MicroBatch> micro_batches;
  std::vector<char> full_precision;       // By unit.
  std::vector<StepOptions> options;       // By rank.
  double total_weight = 0;                // Where ranks have weights.
  float magnitude = 1;                    // Of gradients.
  bool drops = false;                     // The gradients, before the step.
  bool leaves_reduction = false;          // Of the last micro-batch, to Step().
  int bad_rank = -1, bad_parameter = -1;  // Whose gradient in the last micro-batch is not finite.
  float bad_value = 0;
};

RandomStep MakeStep(const RandomJob& job, uint64_t seed, int64_t step);

// A rank's gradient of an element that it sees as `value`.
template <typename Real>
Real GradientOf(Real value, float random, float magnitude) {
  const Real pull = value * Real(0.125);
  return static_cast<Real>(random) * static_cast<Real>(magnitude) + pull;
}

}  // namespace tessera::numerics

#endif  // TESSERA_TESTS_NUMERICS_RANDOM_CASE_H_
