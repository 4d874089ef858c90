// What goes wrong in NCCL or under it: an error on every rank, and no rank hangs.
#include "worker/comm/nccl/nccl_communicator.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl/nccl_test_group.h"
#include "worker/device/cuda/cuda_error.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

NcclTestOptions Ranks(int size) {
  NcclTestOptions options;
  options.size = size;
  return options;
}

// An all-gather of a byte of each rank.
absl::Status Gather(Communicator* comm) {
  const char mine = static_cast<char>('a' + comm->rank());
  std::string all(comm->size(), '-');
  RETURN_IF_ERROR(comm->AllGather(&mine, all.data(), 1));
  RANK_EXPECT(absl::StartsWith("abcd", all), all);
  return absl::OkStatus();
}

absl::Status CreateAndGather(NcclTestRank& rank) {
  ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
  return Gather(comm.get());
}

TEST(NcclCommunicatorTest, DifferentVersionsAreNamedBeforeAnybodyJoins) {
  NcclTestOptions options = Ranks(3);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    if (rank == 1) nccl.version = 22705;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, CreateAndGather);
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.code(),
                testing::AnyOf(StatusCode::kFailedPrecondition, StatusCode::kAborted));
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr("NCCL 22705"), HasSubstr("NCCL 22809")));
  }
}

TEST(NcclCommunicatorTest, RankThatCannotJoinTellsTheOthersWhy) {
  NcclTestOptions options = Ranks(3);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    if (rank == 2) nccl.init_result = NcclResult::kInvalidUsage;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, CreateAndGather);
  EXPECT_THAT(statuses[2], StatusIs(StatusCode::kInternal, HasSubstr("rank 2: ncclInvalidUsage")));
  for (int r : {0, 1}) {
    EXPECT_THAT(statuses[r], StatusIs(StatusCode::kAborted, HasSubstr("rank 2: ncclInvalidUsage")));
  }
}

TEST(NcclCommunicatorTest, JoiningThatNeverEndsEndsAtTheDeadline) {
  NcclTestOptions options = Ranks(2);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    nccl.never_joins = rank == 0;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    rank.options.timeout = absl::Milliseconds(50);
    const absl::Status status = CreateAndGather(rank);
    RANK_EXPECT(rank.nccl->num_aborts() == 1);
    return status;
  });
  EXPECT_THAT(statuses[0], StatusIs(StatusCode::kDeadlineExceeded,
                                    HasSubstr("ncclCommInitRankConfig: rank 0 waited 50ms")));
  EXPECT_THAT(statuses[1], StatusIs(StatusCode::kAborted, HasSubstr("rank 0 waited 50ms")));
}

TEST(NcclCommunicatorTest, EpochThatIsEndedWhileRanksJoinEndsThatOnEveryRankWithItsReason) {
  NcclTestOptions options = Ranks(3);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    nccl.never_joins = true;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    std::thread aborter;
    if (rank.rank == 1) {
      aborter = std::thread([&] {
        while (rank.nccl->num_joining() == 0) std::this_thread::yield();
        rank.control->Abort(absl::UnavailableError("the trainer is gone"));
      });
    }
    const absl::Status status = CreateAndGather(rank);
    if (aborter.joinable()) aborter.join();
    // A rank that had not come so far has nothing to abort.
    RANK_EXPECT(rank.nccl->num_aborts() == rank.nccl->num_joining());
    RANK_EXPECT(!rank.thread->stuck());
    return status;
  });
  for (const absl::Status& status : statuses)
    EXPECT_THAT(status, StatusIs(StatusCode::kAborted, HasSubstr("rank 1: the trainer is gone")));
}

TEST(NcclCommunicatorTest, OperationThatHangsEndsAtTheDeadlineOnEveryRank) {
  NcclTestOptions options = Ranks(3);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    nccl.hangs = rank == 1;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    rank.options.timeout = absl::Milliseconds(100);
    ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
    const absl::Status first = Gather(comm.get());
    RANK_EXPECT(rank.nccl->num_aborts() == 1);
    RANK_EXPECT(comm->Barrier() == first, "each call returns the first error");
    return first;
  });
  int num_late = 0;
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.code(), testing::AnyOf(StatusCode::kDeadlineExceeded, StatusCode::kAborted));
    EXPECT_THAT(std::string(status.message()), HasSubstr("waited 100ms for NCCL among 3 ranks"));
    num_late += absl::IsDeadlineExceeded(status);
  }
  EXPECT_GE(num_late, 1);
}

TEST(NcclCommunicatorTest, ErrorThatTheLibraryFindsLaterEndsTheOperationOnEveryRank) {
  NcclTestOptions options = Ranks(2);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    nccl.hangs = true;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
    RETURN_IF_ERROR(comm->Barrier());
    if (rank.rank == 1) rank.nccl->FailAsync(NcclResult::kRemoteError);
    return Gather(comm.get());
  });
  EXPECT_THAT(statuses[1], StatusIs(StatusCode::kUnavailable,
                                    HasSubstr("ncclRemoteError (6): the fake was told to fail")));
  EXPECT_THAT(statuses[0], StatusIs(StatusCode::kAborted, HasSubstr("ncclRemoteError")));
}

TEST(NcclCommunicatorTest, AbortByAnotherThreadEndsWhatHangsWithItsReason) {
  NcclTestOptions options = Ranks(3);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    nccl.hangs = true;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
    std::thread aborter;
    if (rank.rank == 2) {
      aborter = std::thread([&] {
        // The operation has started once its batch was issued.
        while (rank.cuda->num_calls("EventRecord") == 0) std::this_thread::yield();
        comm->Abort(absl::UnavailableError("the trainer is gone"));
      });
    }
    const absl::Status status = Gather(comm.get());
    if (aborter.joinable()) aborter.join();
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(StatusCode::kAborted, HasSubstr("rank 2: the trainer is gone")));
  }
}

TEST(NcclCommunicatorTest, AbortThatTheLibraryHangsInIsLeftBehindAtItsDeadline) {
  absl::Notification release;
  NcclTestOptions options = Ranks(1);
  options.nccl = [&release](int rank) {
    FakeNcclApi::Options nccl;
    nccl.hangs = true;
    nccl.abort_until = &release;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, [&release](NcclTestRank& rank) -> absl::Status {
    rank.options.timeout = absl::Milliseconds(50);
    rank.options.call_timeout = absl::Milliseconds(50);
    ASSIGN_OR_RETURN(auto comm, NcclCommunicator::Create(rank.options));
    const absl::Status status = Gather(comm.get());
    RANK_EXPECT(rank.thread->stuck());
    RANK_EXPECT(comm->Barrier() == status);
    comm.reset();  // Does not wait either.
    release.Notify();
    while (!rank.nccl->idle()) std::this_thread::yield();  // Out of what this test owns.
    return status;
  });
  EXPECT_THAT(statuses[0], StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("NCCL is stuck")));
}

TEST(NcclCommunicatorTest, DeviceThatIsLostEndsTheOperationOnEveryRank) {
  NcclTestOptions options = Ranks(2);
  options.nccl = [](int rank) {
    FakeNcclApi::Options nccl;
    nccl.hangs = true;
    return nccl;
  };
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
    RETURN_IF_ERROR(comm->Barrier());
    if (rank.rank == 0) rank.cuda->Break(kCudaDeviceUnavailable);
    return Gather(comm.get());
  });
  EXPECT_THAT(statuses[0], StatusIs(StatusCode::kUnavailable, HasSubstr("DEVICE_UNAVAILABLE")));
  EXPECT_THAT(statuses[1], StatusIs(StatusCode::kAborted, HasSubstr("DEVICE_UNAVAILABLE")));
}

TEST(NcclCommunicatorTest, DeviceWithoutMemoryForSlicesIsAnErrorOnEveryRankWithItsNumbers) {
  NcclTestOptions options = Ranks(2);
  options.cuda.memory_bytes = 4096;
  const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
    std::vector<float> send(20000), recv(10000);
    return comm->ReduceScatter(send.data(), recv.data(), 10000, DType::kFp32, 1);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.code(),
                testing::AnyOf(StatusCode::kResourceExhausted, StatusCode::kAborted));
    EXPECT_THAT(std::string(status.message()), HasSubstr("of 4096 bytes are free"));
  }
}

TEST(NcclCommunicatorTest, RevokeIsDoneOnceHoweverOftenItIsAskedFor) {
  for (bool has_revoke : {true, false}) {
    SCOPED_TRACE(has_revoke ? "by the library" : "by aborting");
    NcclTestOptions options = Ranks(2);
    options.nccl = [has_revoke](int rank) {
      FakeNcclApi::Options nccl;
      nccl.has_revoke = has_revoke;
      return nccl;
    };
    const auto statuses = RunNcclRanks(options, [&](NcclTestRank& rank) -> absl::Status {
      {
        ASSIGN_OR_RETURN(const auto comm, NcclCommunicator::Create(rank.options));
        RETURN_IF_ERROR(Gather(comm.get()));
        auto* ready = reinterpret_cast<std::atomic<int>*>(rank.shared);
        ready->fetch_add(1);  // A rank that is still gathering would be ended too.
        while (ready->load() < rank.size) std::this_thread::yield();
        for (int i = 0; i < 3; ++i) {
          RETURN_IF_ERROR(comm->Revoke(absl::UnavailableError("a new epoch")));
        }
        RANK_EXPECT(rank.nccl->num_revokes() == (has_revoke ? 1 : 0));
        const absl::Status status = comm->Barrier();
        RANK_EXPECT(absl::IsAborted(status) && absl::StrContains(status.message(), "a new epoch"));
      }
      RANK_EXPECT(rank.nccl->num_aborts() == 1, "in all");
      return absl::OkStatus();
    });
    for (const absl::Status& status : statuses) EXPECT_OK(status);
  }
}

// The two ranks use their two communicators in opposite orders, at once: with waits on the one NCCL
// thread each would wait for the other.
TEST(NcclCommunicatorTest, CommunicatorsOfOneDeviceDoNotWaitForEachOther) {
  const auto statuses = RunNcclRanks(Ranks(2), [](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(const auto first, NcclCommunicator::Create(rank.options));
    ShmCommunicator::Options channel = rank.control_options;
    channel.channel = 1;
    ASSIGN_OR_RETURN(const auto control, ShmCommunicator::Create(channel));
    NcclCommunicator::Options options = rank.options;
    options.control = control.get();
    ASSIGN_OR_RETURN(const auto second, NcclCommunicator::Create(options));
    absl::Status of_second;
    std::thread other([&] {
      for (int i = 0; i < 50; ++i) of_second.Update(Gather(second.get()));
    });
    absl::Status of_first;
    for (int i = 0; i < 50; ++i) of_first.Update(Gather(first.get()));
    other.join();
    RETURN_IF_ERROR(of_first);
    return of_second;
  });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

// An abort of one alone waits for what the other has running, here as in the library, and nothing
// would ever end that.
TEST(NcclCommunicatorTest, CommunicatorsOfOneDeviceEndTogetherWithTheReasonOfTheFirst) {
  for (const int version : {22809, kNcclGroupAbort}) {
    SCOPED_TRACE(version);
    NcclTestOptions options = Ranks(2);
    options.nccl = [version](int rank) {
      FakeNcclApi::Options nccl;
      nccl.version = version;
      nccl.hangs = true;
      return nccl;
    };
    const auto statuses = RunNcclRanks(options, [](NcclTestRank& rank) -> absl::Status {
      ASSIGN_OR_RETURN(auto first, NcclCommunicator::Create(rank.options));
      ShmCommunicator::Options channel = rank.control_options;
      channel.channel = 1;
      ASSIGN_OR_RETURN(const auto control, ShmCommunicator::Create(channel));
      NcclCommunicator::Options second_options = rank.options;
      second_options.control = control.get();
      second_options.control_aborted = [&] { return control->aborted(); };
      ASSIGN_OR_RETURN(auto second, NcclCommunicator::Create(second_options));
      absl::Status of_second;
      std::thread other([&] { of_second = Gather(second.get()); });
      std::thread aborter([&] {
        // Both are running on both ranks before anything ends.
        while (rank.nccl->num_running() < 2) std::this_thread::yield();
        auto* ready = reinterpret_cast<std::atomic<int>*>(rank.shared);
        ready->fetch_add(1);
        while (ready->load() < rank.size) std::this_thread::yield();
        if (rank.rank == 1) first->Abort(absl::InternalError("a kernel failed"));
      });
      const absl::Status of_first = Gather(first.get());
      other.join();
      aborter.join();
      RANK_EXPECT(!rank.thread->stuck());
      RANK_EXPECT(absl::StrContains(of_first.message(), "rank 1: a kernel failed"),
                  of_first.ToString());
      RANK_EXPECT(second->Barrier() == of_second, "each call returns the first error");
      first.reset();
      second.reset();
      RANK_EXPECT(rank.nccl->num_aborts() == 2, "in all");
      return of_second;
    });
    for (const absl::Status& status : statuses)
      EXPECT_THAT(status, StatusIs(StatusCode::kAborted, HasSubstr("rank 1: a kernel failed")));
  }
}

TEST(NcclCommunicatorTest, ClosingOneCommunicatorLeavesTheOthersOfTheDevice) {
  const auto statuses = RunNcclRanks(Ranks(2), [](NcclTestRank& rank) -> absl::Status {
    ASSIGN_OR_RETURN(auto first, NcclCommunicator::Create(rank.options));
    ShmCommunicator::Options channel = rank.control_options;
    channel.channel = 1;
    ASSIGN_OR_RETURN(const auto control, ShmCommunicator::Create(channel));
    NcclCommunicator::Options options = rank.options;
    options.control = control.get();
    ASSIGN_OR_RETURN(const auto second, NcclCommunicator::Create(options));
    RETURN_IF_ERROR(Gather(first.get()));
    first.reset();
    return Gather(second.get());
  });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

}  // namespace
}  // namespace tessera
