#include "worker/comm/loopback/loopback_communicator.h"

#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/communicator_conformance.h"

namespace tessera {
namespace {

// All ranks in turn, in this thread: nothing of them waits.
std::vector<absl::Status> RunInTurn(const GroupOptions& options, const RankBody& body) {
  std::vector<char> shared(options.shared_bytes);
  std::vector<absl::Status> statuses;
  for (int rank = 0; rank < options.size; ++rank) {
    auto comm = LoopbackCommunicator::Create(rank, options.size);
    statuses.push_back(comm.ok() ? body(RankContext{comm->get(), shared.data()}) : comm.status());
  }
  return statuses;
}

CommunicatorBackend Loopback() {
  CommunicatorBackend backend;
  backend.name = "Loopback";
  backend.run = RunInTurn;
  backend.ranks_hold_the_same = true;
  const char* alone = "each loopback rank is a group of its own: it meets no other";
  backend.exclusions = {
      {"BarrierHoldsEveryoneBack", alone},
      {"AllGatherMappedShowsPeersWritesAndCopiesNothing", alone},
      {"ReduceScatterMappedReducesOwnSliceOfAll", alone},
      {"ReduceScatterMappedReadsMovesAndWritesOnlyTheParts", alone},
      {"AbortEndsEachOperationOnEveryRankWithTheReason", alone},
      {"AbortIsIdempotentAndTheFirstReasonStays", alone},
      {"MissingRankIsNamedWithTheOperation", "nobody can be missing: nothing waits"},
      {"DifferentOperationsAreAnErrorNotAHang", alone},
      {"DifferentSizesAreAnErrorNotAHang", alone},
      {"DifferentTypesAndScalesAreAnErrorNotAHang", alone},
      {"AfterAFailureEachCallReturnsTheFirstError", "nobody can be missing: nothing waits"},
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Loopback()),
                                          testing::Values(1, 2, 3, 4, 8)));

TEST(LoopbackCommunicatorTest, MappedReductionWorksOnRealBuffers) {
  ASSERT_OK_AND_ASSIGN(auto comm, LoopbackCommunicator::Create(1, 2));
  const std::vector<float> a = {1, 2, 3, 4};
  const std::vector<float> b = {10, 20, 30, 40};
  const void* sends[] = {a.data(), b.data()};
  float recv[2] = {};
  ASSERT_OK(comm->ReduceScatterMapped(sends, {{0, 2}, {2, 4}}, {{0, 4}}, DType::kFp32, 1, false,
                                      recv, nullptr));
  EXPECT_EQ(33, recv[0]);
  EXPECT_EQ(44, recv[1]);
}

TEST(LoopbackCommunicatorTest, AbortStaysWithItsFirstReason) {
  ASSERT_OK_AND_ASSIGN(auto comm, LoopbackCommunicator::Create(0, 4));
  comm->Abort(absl::InternalError("first"));
  comm->Abort(absl::InternalError("second"));
  EXPECT_THAT(comm->Barrier(), StatusIs(absl::StatusCode::kAborted, testing::HasSubstr("first")));
  EXPECT_THAT(comm->AllGatherMapped(nullptr, 0),
              StatusIs(absl::StatusCode::kAborted, testing::HasSubstr("first")));
}

TEST(LoopbackCommunicatorTest, RefusesARankOutsideItsGroup) {
  EXPECT_THAT(LoopbackCommunicator::Create(2, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(LoopbackCommunicator::Create(0, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

}  // namespace
}  // namespace tessera
