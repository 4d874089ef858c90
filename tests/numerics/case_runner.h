// Runs the random steps of a job on one rank, together with a reference of its own, and compares
// every value that it sees: parameters at each window, the norm, and at the end the fp32 shards.
#ifndef TESSERA_TESTS_NUMERICS_CASE_RUNNER_H_
#define TESSERA_TESTS_NUMERICS_CASE_RUNNER_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "tessera/session.h"
#include "tests/numerics/random_case.h"
#include "tests/numerics/reference_trainer.h"

namespace tessera::numerics {

// Errors: Internal  naming the seed, the step, the parameter and the element that differs, or what
// the step gave instead of what it should; others as Session. All ranks call it at once.
// `between`, if given, runs between the trainer's operations. `end`, if given, gets what the job is
// then, by the reference.
absl::Status RunCases(const RandomJob& job, uint64_t seed, int64_t num_steps, Session* session,
                      const std::function<void()>& between = nullptr,
                      std::optional<ReferenceTrainer>* end = nullptr);

}  // namespace tessera::numerics

#endif  // TESSERA_TESTS_NUMERICS_CASE_RUNNER_H_
