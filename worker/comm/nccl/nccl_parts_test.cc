// The parts that need no group: phases, the thread, types and names, the real library's absence.
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/no_more_threads.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl/nccl_api.h"
#include "worker/comm/nccl/nccl_phase.h"
#include "worker/comm/nccl/nccl_thread.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

TEST(NcclPhaseTest, EveryTransition) {
  constexpr NcclPhase kPhases[] = {NcclPhase::kJoining, NcclPhase::kReady, NcclPhase::kRevoked,
                                   NcclPhase::kAborted, NcclPhase::kStuck};
  const auto none = [](NcclPhase next) { return NcclStep{next, NcclCall::kNone}; };
  const NcclStep abort = {NcclPhase::kAborted, NcclCall::kAbort};
  const NcclStep revoke = {NcclPhase::kRevoked, NcclCall::kRevoke};
  const NcclStep aborted = none(NcclPhase::kAborted);
  const NcclStep stuck = none(NcclPhase::kStuck);
  // By phase: kJoined, kRevoke, kAbort, kAbortHung.
  const NcclStep expected[5][4] = {
      {none(NcclPhase::kReady), abort, abort, stuck},
      {none(NcclPhase::kReady), revoke, abort, stuck},
      {none(NcclPhase::kRevoked), none(NcclPhase::kRevoked), abort, stuck},
      {aborted, aborted, aborted, stuck},
      {stuck, stuck, stuck, stuck},
  };
  for (int phase = 0; phase < 5; ++phase) {
    for (int event = 0; event < 4; ++event) {
      EXPECT_TRUE(Next(kPhases[phase], static_cast<NcclEvent>(event)) == expected[phase][event])
          << "phase " << phase << " event " << event;
    }
  }
}

TEST(NcclTypeTest, EachDTypeHasATypeOfItsSize) {
  const std::pair<DType, NcclType> types[] = {
      {DType::kFp32, NcclType::kFloat32}, {DType::kBf16, NcclType::kBfloat16},
      {DType::kFp16, NcclType::kFloat16}, {DType::kFp64, NcclType::kFloat64},
      {DType::kInt64, NcclType::kInt64},  {DType::kInt32, NcclType::kInt32},
  };
  for (const auto& [dtype, type] : types) {
    EXPECT_EQ(NcclTypeOf(dtype), type) << Name(dtype);
    EXPECT_EQ(SizeBytes(type), SizeBytes(dtype)) << Name(dtype);
  }
  EXPECT_EQ(NcclTypeOf(Fp8Format::kE4M3), NcclType::kFloat8e4m3);
  EXPECT_EQ(NcclTypeOf(Fp8Format::kE5M2), NcclType::kFloat8e5m2);
  EXPECT_EQ(SizeBytes(NcclType::kFloat8e4m3), 1);
  EXPECT_EQ(SizeBytes(NcclType::kFloat8e5m2), 1);
  EXPECT_EQ(NcclName(NcclResult::kRemoteError), "ncclRemoteError (6)");
  EXPECT_EQ(NcclName(static_cast<NcclResult>(99)), "NCCL error (99)");
}

TEST(NcclApiTest, LibraryIsThereOrTheErrorSaysWhyNot) {
  const absl::StatusOr<NcclApi*> api = LoadNcclApi();
  if (api.ok()) {
    int version = 0;
    EXPECT_EQ((*api)->GetVersion(&version), NcclResult::kSuccess);
    EXPECT_GE(version, kNcclNonBlocking);
    return;
  }
  EXPECT_THAT(std::string(api.status().message()),
              testing::AnyOf(HasSubstr("libnccl.so.2"), HasSubstr("built without NCCL")));
}

TEST(NcclThreadTest, AllWorkRunsOnOneThreadInOrder) {
  ASSERT_OK_AND_ASSIGN(auto thread, NcclThread::Create());
  std::vector<std::thread::id> ids;
  for (int i = 0; i < 10; ++i) {
    EXPECT_OK(thread->Run(
        [&ids] {
          ids.push_back(std::this_thread::get_id());
          return absl::OkStatus();
        },
        absl::Minutes(1)));
  }
  ASSERT_EQ(ids.size(), 10u);
  for (const std::thread::id id : ids) EXPECT_EQ(id, ids[0]);
  EXPECT_NE(ids[0], std::this_thread::get_id());
  EXPECT_EQ(thread->Run([] { return absl::InternalError("its own"); }, absl::Minutes(1)),
            absl::InternalError("its own"));
}

TEST(NcclThreadTest, CallThatNeverComesBackCostsItsDeadlineOnceAndTheThread) {
  ASSERT_OK_AND_ASSIGN(auto thread, NcclThread::Create());
  auto release = std::make_shared<absl::Notification>();
  EXPECT_THAT(thread->Run(
                  [release] {
                    release->WaitForNotification();
                    return absl::OkStatus();
                  },
                  absl::Milliseconds(20)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("did not come back within 20ms")));
  EXPECT_TRUE(thread->stuck());
  EXPECT_THAT(thread->Run([] { return absl::OkStatus(); }, absl::InfiniteDuration()),
              StatusIs(StatusCode::kUnavailable, HasSubstr("the process must end")));
  thread.reset();  // Does not wait for it.
  release->Notify();
}

TEST(NcclThreadTest, NoThreadIsAnError) {
  const NoMoreThreads limit;
  EXPECT_THAT(NcclThread::Create(), StatusIs(StatusCode::kResourceExhausted, HasSubstr("NCCL")));
}

}  // namespace
}  // namespace tessera
