// Runs a case with plain modules, one for each rank, whose gradients are averaged, and with an
// attached one on as many ranks, and compares what they became.
#ifndef TESSERA_TESTS_TRIALS_TRIAL_RUN_H_
#define TESSERA_TESTS_TRIALS_TRIAL_RUN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "layout/dtype.h"
#include "layout/strategy.h"
#include "tests/trials/trial_cases.h"

namespace tessera::trials {

struct Setting {
  Strategy strategy = Strategy::kFullShard;
  // Of the parameters in forward and backward: fp32, fp64 or bf16.
  DType dtype = DType::kFp32;
  int num_blocks = 2;
  int world_size = 2;
};

std::string NameOf(const Setting& setting);

// All of them, and fewer of which each pair of values is in one.
std::vector<Setting> AllSettings();
std::vector<Setting> FewSettings();

bool Applies(const TrialCase& trial, const Setting& setting);

// OK where it trained, saved and loaded as the plain module, or was refused, or gave up, as the
// case says. Of a server in this process, with `folder` for what is saved. Errors: Internal  what
// was otherwise, with the parameter or the message
absl::Status RunTrial(const TrialCase& trial, const Setting& setting, const std::string& folder);

}  // namespace tessera::trials

#endif  // TESSERA_TESTS_TRIALS_TRIAL_RUN_H_
