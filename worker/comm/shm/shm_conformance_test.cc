#include "gtest/gtest.h"
#include "worker/comm/communicator_conformance.h"
#include "worker/comm/shm/shm_test_group.h"

namespace tessera {
namespace {

CommunicatorBackend Backend(const char* name,
                            std::vector<absl::Status> run(const GroupOptions&, const RankBody&)) {
  CommunicatorBackend backend;
  backend.name = name;
  backend.run = run;
  return backend;
}

INSTANTIATE_TEST_SUITE_P(ShmProcesses, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("processes", RunShmProcesses)),
                                          testing::Values(1, 2, 3, 4, 8)));
INSTANTIATE_TEST_SUITE_P(ShmProcessesThatStage, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("staging processes",
                                                                  RunShmProcessesThatStage)),
                                          testing::Values(2, 5)));
INSTANTIATE_TEST_SUITE_P(ShmThreads, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("threads", RunShmThreads)),
                                          testing::Values(1, 2, 3, 4, 8)));

}  // namespace
}  // namespace tessera
