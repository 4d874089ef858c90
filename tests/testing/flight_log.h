// What a rank really did, read from its flight record as `tessera dump` shows it.
#ifndef TESSERA_TESTS_TESTING_FLIGHT_LOG_H_
#define TESSERA_TESTS_TESTING_FLIGHT_LOG_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::testing_support {

struct FlightOp {
  int64_t step = 0;
  std::string op;    // "unshard", "reduce", "step", ...
  std::string unit;  // Empty: no unit.
  int64_t bytes = 0;
};

// All operations of the rank that are still in its record, oldest first. Fails the test if there is
// no such rank.
std::vector<FlightOp> ReadFlightLog(const std::string& worker_address, const std::string& job_id,
                                    int rank);

// Step, operation, unit and bytes of each entry of steps up to `last_step`, which is committed.
// Later ones may be asked for and not recorded yet: an unshard of what is gathered already does
// not wait for the executor.
using FlightOps = std::vector<std::tuple<int64_t, std::string, std::string, int64_t>>;
FlightOps OpsOfSteps(const std::vector<FlightOp>& log, int64_t last_step);

// The unshards and reductions of a step: "U root U block0 R block0".
std::string UnshardsAndReductions(const std::vector<FlightOp>& log, int64_t step);

// Operations of this kind in this step.
int CountOps(const std::vector<FlightOp>& log, const std::string& op, int64_t step);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_FLIGHT_LOG_H_
