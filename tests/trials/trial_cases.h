// Training code as people write it. Each case runs with a plain module and with an attached one.
#ifndef TESSERA_TESTS_TRIALS_TRIAL_CASES_H_
#define TESSERA_TESTS_TRIALS_TRIAL_CASES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/torch/libtorch.h"
#include "tests/trials/trial_net.h"

namespace tessera::trials {

struct Clip {
  double max_norm = 0;  // 0: none.
  double p = 2;
};

// What the last rank does, where there are others.
enum class LastRank { kTrains, kLeaves, kNeverComes };

struct TrialCase {
  std::string name;  // "gradient-penalty"
  std::string what;  // For the table.
  // Before attaching.
  std::function<void(Net& net)> prepare = nullptr;
  // A step's forwards and backwards on this rank's data. Returns whether the step is taken.
  std::function<bool(Net& net, const torch::Tensor& x, int64_t step)> body;
  std::function<Clip(int64_t step)> clip = nullptr;
  // What the attached model's step must say in place of training, in FailedPrecondition,
  // InvalidArgument or Unimplemented; empty: it trains as the plain module.
  std::string refusal = "";
  // Not kTrains: the others must end by their timeouts and name it; in few settings, since they
  // wait.
  LastRank last_rank = LastRank::kTrains;
};

std::vector<TrialCase> AllTrialCases();

}  // namespace tessera::trials

#endif  // TESSERA_TESTS_TRIALS_TRIAL_CASES_H_
