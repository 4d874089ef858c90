// All of a toy job's state, as a test compares it.
#ifndef TESSERA_TESTS_TESTING_TOY_STATE_H_
#define TESSERA_TESTS_TESTING_TOY_STATE_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_memory.h"
#include "tessera/session.h"

namespace tessera::testing_support {

struct ToyState {
  std::vector<float> parameters;
  // By array, unit and parameter.
  std::map<std::tuple<StateArray, int, int>, std::vector<float>> moments;
  std::vector<int64_t> update_counts;
  int64_t step = 0;

  bool operator==(const ToyState& other) const {
    return parameters == other.parameters && moments == other.moments &&
           update_counts == other.update_counts && step == other.step;
  }
};

// Collective. Of a job whose parameters are all fp32.
absl::StatusOr<ToyState> ReadState(Session* session);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_TOY_STATE_H_
