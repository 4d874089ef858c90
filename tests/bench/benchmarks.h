// The benchmarks. Each forks a team of its own and returns its rows.
#ifndef TESSERA_TESTS_BENCH_BENCHMARKS_H_
#define TESSERA_TESTS_BENCH_BENCHMARKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/strategy.h"
#include "tests/bench/report.h"

namespace tessera {
namespace bench {

// G1 to G4: all-gather, reduce-scatter and barrier of one host, compared with Gloo, and with Open
// MPI if the program `open_mpi_peer` is named.
absl::StatusOr<std::vector<Row>> BenchCollectives(int size, int rounds, int64_t bytes,
                                                  const std::string& open_mpi_peer);

// Two hosts of half the ranks each, over TCP, against Gloo among all ranks. Requires an even size.
absl::StatusOr<std::vector<Row>> BenchHosts(int size, int rounds, int64_t bytes);

// G6: AdamW over this many parameters in all, against a four-read-three-write loop.
absl::StatusOr<std::vector<Row>> BenchOptimizer(int size, int rounds, int64_t num_parameters);

// G11: odd world sizes, and units of ragged shapes.
absl::StatusOr<std::vector<Row>> BenchRagged(int size, int rounds, int64_t bytes);

// G10: a job's memory against the formula, and page faults a step.
absl::StatusOr<std::vector<Row>> BenchMemory(int size, int rounds, Strategy strategy,
                                             const std::string& executor_binary);

// A step over two hosts against the larger of its compute and its communication.
absl::StatusOr<std::vector<Row>> BenchOverlap(int rounds, const std::string& executor_binary);

// G8: a round trip through shared memory, against an empty gRPC call.
absl::StatusOr<std::vector<Row>> BenchRoundTrip(int rounds);

// G8 and G9 through the SDK: a step, and a unit's windows, of a model that costs nothing.
absl::StatusOr<std::vector<Row>> BenchSdkStep(int rounds, const std::string& executor_binary);

// G12 to G14: a checkpoint in `folder`, saved, loaded, and saved in the background; against
// PyTorch's own ways if a Python that has it is named, with peers/checkpoint_peer.py.
struct CheckpointPeerFlags {
  std::string python;
  std::string script;
};
absl::StatusOr<std::vector<Row>> BenchCheckpoint(int size, int rounds, const std::string& folder,
                                                 const std::string& executor_binary,
                                                 const CheckpointPeerFlags& peer_flags);

// G14: the whole state of a job, read over gRPC. Requires two ranks or more.
absl::StatusOr<std::vector<Row>> BenchLiveState(int size, int rounds,
                                                const std::string& executor_binary);

// G5: a whole step of the demo's model with `batch` windows per rank, against forward and backward
// alone and against a replicated step with Gloo. An empty `executor_binary` means threads.
inline constexpr int kLargeBatch = 8;
absl::StatusOr<std::vector<Row>> BenchStep(int size, int rounds, int batch,
                                           const std::string& executor_binary);

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_BENCHMARKS_H_
