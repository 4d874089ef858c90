// The same collectives by Open MPI, over its shared memory, to compare with ours.
#ifndef TESSERA_TESTS_BENCH_OPEN_MPI_GROUP_H_
#define TESSERA_TESTS_BENCH_OPEN_MPI_GROUP_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/bench/open_mpi_control.h"

namespace tessera {
namespace bench {

// Made before a team is forked and destroyed after it; one of the team's processes at a time calls
// what is between.
class OpenMpiGroup {
 public:
  // Starts `size` processes of the program `peer` by mpirun, with buffers of `max_bytes` each. A
  // file in `directory` is shared with them.
  // Errors: NotFound     mpirun cannot be started
  //         Unavailable  the processes did not get ready
  static absl::StatusOr<std::unique_ptr<OpenMpiGroup>> Start(const std::string& peer, int size,
                                                             int64_t max_bytes,
                                                             const std::string& directory);
  ~OpenMpiGroup();
  OpenMpiGroup(const OpenMpiGroup&) = delete;
  OpenMpiGroup& operator=(const OpenMpiGroup&) = delete;

  // Of one operation: from the first rank's start to the last one's end, by the number of
  // repetitions. `bytes` is the size of the whole. Ends the process if a peer does not answer.
  double Seconds(OpenMpiOp op, int repetitions, int64_t bytes);
  // What the processes have used so far.
  int64_t cpu_ns() const;

 private:
  OpenMpiGroup(OpenMpiControl* control, int size, pid_t mpirun)
      : control_(control), size_(size), mpirun_(mpirun) {}
  bool AwaitAll();
  void Order(OpenMpiOp op, int repetitions, int64_t bytes);

  OpenMpiControl* control_;  // Mapped.
  const int size_;
  const pid_t mpirun_;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_OPEN_MPI_GROUP_H_
