// What a team shares with its peer processes of Open MPI: a mapped file through which rank 0 of the
// team has them run one operation at a time. They sleep in between, so neither side disturbs what
// the other measures. Used by a program that is linked with nothing but Open MPI.
#ifndef TESSERA_TESTS_BENCH_OPEN_MPI_CONTROL_H_
#define TESSERA_TESTS_BENCH_OPEN_MPI_CONTROL_H_

#include <semaphore.h>

#include <cstdint>

namespace tessera {
namespace bench {

enum class OpenMpiOp : int32_t { kBarrier, kAllGather, kReduceScatter, kQuit };

constexpr int kMaxOpenMpiRanks = 64;

struct OpenMpiControl {
  sem_t go[kMaxOpenMpiRanks];  // Posted for each operation, by rank.
  sem_t done;  // Posted by each rank: once when it is ready, then for each operation.
  // Written before `go`.
  OpenMpiOp op;
  int32_t repetitions;
  int64_t num_floats;  // Of the whole, a multiple of the number of ranks.
  // Written before `done`. Monotonic clock; CPU time since the process started.
  int64_t begin_ns[kMaxOpenMpiRanks];
  int64_t end_ns[kMaxOpenMpiRanks];
  int64_t cpu_ns[kMaxOpenMpiRanks];
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_OPEN_MPI_CONTROL_H_
