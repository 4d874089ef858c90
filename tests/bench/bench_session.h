// Sessions of models that compute nothing, for measuring what Tessera itself costs.
#ifndef TESSERA_TESTS_BENCH_BENCH_SESSION_H_
#define TESSERA_TESTS_BENCH_BENCH_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/session.h"
#include "tests/bench/cluster_process.h"

namespace tessera {
namespace bench {

// `num_units` units of one parameter of `unit_numel` elements each.
ModelSpec EqualUnits(int num_units, int64_t unit_numel);

// Attaches as `rank` of `config`'s world and initialises; a failure ends the process. Collective.
std::unique_ptr<Session> OpenSession(const ClusterProcess& cluster, const std::string& job,
                                     const ModelSpec& model, const JobConfig& config = JobConfig(),
                                     int rank = 0, int worker = 0);

// Gives the unit a gradient, without a copy where possible, and reduces it.
void ReduceUnit(Session* session, int unit, absl::Span<const float> gradient);

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_BENCH_SESSION_H_
