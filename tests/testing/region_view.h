// Memory of a worker's jobs, mapped by a test: as a reader that has no words for letting go.
#ifndef TESSERA_TESTS_TESTING_REGION_VIEW_H_
#define TESSERA_TESTS_TESTING_REGION_VIEW_H_

#include <string>

#include "shm/region.h"

namespace tessera::testing_support {

// The region of this label ("toy/group", "toy/0/state") in the process that owns it. Not valid
// where there is none.
Mapping MapRegionOf(int pid, const std::string& label);

// All that version `step` % 2 has, of a rank's state.
std::string VersionOf(const Mapping& state, int64_t step);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_REGION_VIEW_H_
