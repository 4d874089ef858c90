// Groups of NCCL ranks for tests, a process each, with a device of their own or several to one.
//
// Several ranks on one device are not a way to run: NCCL's own rule forbids it, their kernels take
// turns, and measurements mean nothing. It is a way to test on a machine with one GPU, and
// takes settings by which NCCL does not see it: those of PlaceNcclRank.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_PROCESSES_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_PROCESSES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/nccl/nccl_communicator.h"
#include "worker/comm/nccl/nccl_shared_gpu.h"
#include "worker/comm/rank_group.h"

namespace tessera {

// Where a rank goes, and what its process sets in its environment before it loads NCCL.
struct NcclPlacement {
  int device = 0;
  NcclEnvironment environment;
};
// Pure. `nccl_version` as NCCL numbers them. `num_devices` >= 1.
NcclPlacement PlaceNcclRank(int rank, int size, int num_devices, int nccl_version);

// What a rank's process has. Neither is given back: the process ends.
struct NcclMachine {
  NcclApi* nccl = nullptr;
  CudaDevice* device = nullptr;
  SliceKernels* kernels = nullptr;
  DirectPlace place;
};
// Called in the rank's process.
using MakeNcclMachine = std::function<absl::StatusOr<NcclMachine>(int rank, int size)>;

// The machine's own driver and library.
// Errors: NotFound, Unimplemented  there is no driver, device or library
absl::StatusOr<NcclMachine> MakeRealNcclMachine(int rank, int size);
// Fakes; one rank only, for they meet in one process.
absl::StatusOr<NcclMachine> MakeFakeNcclMachine(int rank, int size);

// Whether the machine can have ranks at all, found in a process of its own: a driver does not
// survive a fork. OK, or what is missing.
absl::Status FindRealNccl();

struct NcclProcessOptions {
  GroupOptions group;
  MakeNcclMachine machine = MakeRealNcclMachine;
  bool library_sums = false;
  absl::Duration timeout = absl::Minutes(1);  // Of joining, and of each operation.
};
// Runs `body` on each rank, all at once, with buffers of the host (see staged_communicator.h).
std::vector<absl::Status> RunNcclProcesses(const NcclProcessOptions& options, const RankBody& body);
// The same, with what a communicator is made of, for callers with buffers of the device.
using NcclProcessBody = std::function<absl::Status(const NcclCommunicator::Options& options)>;
std::vector<absl::Status> RunNcclProcessesOnDevice(const NcclProcessOptions& options,
                                                   const NcclProcessBody& body);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_PROCESSES_H_
