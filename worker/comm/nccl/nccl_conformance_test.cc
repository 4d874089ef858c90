#include "gtest/gtest.h"
#include "worker/comm/communicator_conformance.h"
#include "worker/comm/nccl/nccl_test_group.h"

namespace tessera {
namespace {

CommunicatorBackend Backend(const char* name,
                            std::vector<absl::Status> run(const GroupOptions&, const RankBody&)) {
  CommunicatorBackend backend;
  backend.name = name;
  backend.run = run;
  // Each rank has memory of its own, so to mapped operations it is a host.
  backend.hosts = [](int size) { return std::vector<int>(size, 1); };
  return backend;
}

CommunicatorBackend ByLibrary() {
  CommunicatorBackend backend = Backend("library", RunNcclGroupWithLibrarySums);
  backend.library_sums = true;
  return backend;
}

INSTANTIATE_TEST_SUITE_P(NcclOverFakes, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("kernels", RunNcclGroup)),
                                          testing::Values(1, 2, 3, 4)));
// The fake sums in rank order, as the library need not.
INSTANTIATE_TEST_SUITE_P(NcclLibrarySumsOverFakes, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(ByLibrary()), testing::Values(2, 3)));

}  // namespace
}  // namespace tessera
