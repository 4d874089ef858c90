// Groups of NCCL ranks for tests: threads of this process, each with a fake device and a fake NCCL
// of its own, that agree over shared memory.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_TEST_GROUP_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_TEST_GROUP_H_

#include <functional>
#include <vector>

#include "worker/comm/nccl/fake_nccl_api.h"
#include "worker/comm/nccl/nccl_communicator.h"
#include "worker/comm/rank_group.h"
#include "worker/comm/shm/shm_communicator.h"

namespace tessera {

// What one rank has to make communicators of.
struct NcclTestRank {
  int rank = 0;
  int size = 1;
  char* shared = nullptr;
  FakeCudaApi* cuda = nullptr;
  FakeNcclApi* nccl = nullptr;
  ShmCommunicator* control = nullptr;
  NcclThread* thread = nullptr;
  NcclCommunicator::Options options;
  ShmCommunicator::Options control_options;
};
using NcclTestBody = std::function<absl::Status(NcclTestRank&)>;

struct NcclTestOptions {
  int size = 1;
  int64_t shared_bytes = 4096;
  // How rank r's library and device behave.
  std::function<FakeNcclApi::Options(int rank)> nccl;
  FakeCudaApi::Options cuda;  // Of all, where `cuda_of` is not set.
  std::function<FakeCudaApi::Options(int rank)> cuda_of;
};

// Runs `body` on each rank, all at once. Each must have called NCCL as the library allows.
std::vector<absl::Status> RunNcclRanks(const NcclTestOptions& options, const NcclTestBody& body);

// For the conformance tests.
std::vector<absl::Status> RunNcclGroup(const GroupOptions& options, const RankBody& body);
std::vector<absl::Status> RunNcclGroupWithLibrarySums(const GroupOptions& options,
                                                      const RankBody& body);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_TEST_GROUP_H_
