// Random jobs whose state goes through files into other random jobs: the same parameters in other
// units, of another world, strategy and dtype. From a seed.
#ifndef TESSERA_TESTS_NUMERICS_CHECKPOINT_CASE_H_
#define TESSERA_TESTS_NUMERICS_CHECKPOINT_CASE_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/numerics/random_case.h"

namespace tessera::numerics {

struct CheckpointCase {
  RandomJob saves, loads;
  // By each name of a parameter of either job: its own name, not an alias's, in the job that saves.
  std::map<std::string, std::string> saved_name;
};

// Worlds of 1 to 6 ranks on one worker, or of 2 to 6 on two or three. Three names may be tied, and
// whichever of them is the parameter's own in the job that loads. One parameter in eight is frozen
// in one job and not in the other, or has fp32 in one and fp64 in the other.
CheckpointCase MakeCheckpointCase(uint64_t seed);

}  // namespace tessera::numerics

#endif  // TESSERA_TESTS_NUMERICS_CHECKPOINT_CASE_H_
