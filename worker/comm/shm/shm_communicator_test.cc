// What is particular to shared memory: joining, epochs, channels, killed ranks.
#include "worker/comm/shm/shm_communicator.h"

#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/comm/shm/shm_test_group.h"

namespace tessera {
namespace {

using testing::Each;
using testing::HasSubstr;

GroupOptions Group(int size) {
  GroupOptions group;
  group.size = size;
  return group;
}

ShmCommunicator::Options ImpatientOptions(const GroupOptions& group, const SharedMapping& mapping) {
  ShmCommunicator::Options options = ShmOptions(group, mapping);
  options.join_timeout = absl::Milliseconds(50);
  return options;
}

// Joins as `rank` in `epoch` and runs 100 checked sums.
absl::Status JoinAndSum(ShmCommunicator::Options options, int rank, uint32_t epoch) {
  options.rank = rank;
  options.epoch = epoch;
  ASSIGN_OR_RETURN(auto comm, ShmCommunicator::Create(options));
  for (int i = 0; i < 100; ++i) {
    double sum = rank + 1;
    RETURN_IF_ERROR(comm->AllReduce(&sum, 1, DType::kFp64, ReduceOp::kSum, 1));
    RANK_EXPECT(sum == options.size * (options.size + 1) / 2, "got ", sum);
  }
  return absl::OkStatus();
}

// As in /proc: S for a process that waits, Z for one that has ended.
char StateOf(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/stat"));
  const std::string line((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = line.rfind(')');
  return name_end == std::string::npos ? 'Z' : line.at(name_end + 2);
}

TEST(ShmCommunicatorTest, RequiredBytesRefusesNonsense) {
  ShmCommunicator::Options options;
  EXPECT_OK(ShmCommunicator::RequiredBytes(8, options));
  EXPECT_THAT(ShmCommunicator::RequiredBytes(0, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("size 0")));
  options.num_channels = 0;
  EXPECT_THAT(ShmCommunicator::RequiredBytes(8, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_channels")));
  options.num_channels = 1;
  for (int64_t staging : {int64_t{0}, int64_t{-4096}, int64_t{5000}, int64_t{1} << 40}) {
    options.staging_bytes_per_rank = staging;
    EXPECT_THAT(ShmCommunicator::RequiredBytes(8, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("staging")))
        << staging;
  }
}

TEST(ShmCommunicatorTest, CreateRefusesABadMappingOrRank) {
  const SharedMapping mapping(ShmBytes(Group(2)));
  const ShmCommunicator::Options good = ShmOptions(Group(2), mapping);
  ShmCommunicator::Options options = good;
  options.bytes -= 1;
  EXPECT_THAT(ShmCommunicator::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 ranks need")));
  options = good;
  options.base = static_cast<char*>(good.base) + 8;
  EXPECT_THAT(ShmCommunicator::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("aligned")));
  options = good;
  options.rank = 2;
  EXPECT_THAT(ShmCommunicator::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 of 2")));
  options = good;
  options.channel = 2;
  EXPECT_THAT(ShmCommunicator::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("channel 2 of 2")));
  options = good;
  options.epoch = 0;
  EXPECT_THAT(ShmCommunicator::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("epoch")));
}

TEST(ShmCommunicatorTest, RanksThatDoNotJoinAreNamed) {
  const SharedMapping mapping(ShmBytes(Group(4)));
  EXPECT_THAT(JoinAndSum(ImpatientOptions(Group(4), mapping), 1, 1),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ranks 0, 2, 3 of 4 did not join epoch 1")));
}

TEST(ShmCommunicatorTest, ARankJoinsAnEpochOnce) {
  const SharedMapping mapping(ShmBytes(Group(1)));
  EXPECT_OK(JoinAndSum(ShmOptions(Group(1), mapping), 0, 5));
  for (uint32_t epoch : {5, 4}) {
    EXPECT_THAT(JoinAndSum(ShmOptions(Group(1), mapping), 0, epoch),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("joined epoch 5")));
  }
  EXPECT_OK(JoinAndSum(ShmOptions(Group(1), mapping), 0, 6));
}

TEST(ShmCommunicatorTest, RanksWithAnotherGeometryAreRefused) {
  const SharedMapping mapping(ShmBytes(Group(2)) * 2);
  absl::Status status_of_other;
  std::thread other([&] {
    ShmCommunicator::Options options = ShmOptions(Group(2), mapping);
    options.num_channels = 1;
    status_of_other = JoinAndSum(options, 1, 1);
  });
  const absl::Status status = JoinAndSum(ShmOptions(Group(2), mapping), 0, 1);
  other.join();
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(status_of_other.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), "another size") ||
              absl::StrContains(status_of_other.message(), "another size"))
      << status << " " << status_of_other;
}

TEST(ShmCommunicatorTest, StragglerOfAnEarlierEpochIsAborted) {
  const SharedMapping mapping(ShmBytes(Group(2)));
  absl::Status straggler_status;
  std::thread straggler(
      [&] { straggler_status = JoinAndSum(ShmOptions(Group(2), mapping), 0, 1); });
  // Joins alone; its peer of epoch 1 never comes.
  const ShmRegion region(mapping.data(), 2, 2, 16 << 10);
  while (region.slot(0, 0)->joined.value.load() != 1) std::this_thread::yield();
  EXPECT_THAT(JoinAndSum(ImpatientOptions(Group(2), mapping), 1, 2),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ranks 0 of 2")));
  straggler.join();
  EXPECT_THAT(straggler_status, StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch 1")));
}

TEST(ShmCommunicatorTest, SupervisorAbortsAnEpochFromOutside) {
  const SharedMapping mapping(ShmBytes(Group(2)));
  std::thread supervisor([&] {
    EXPECT_OK(ShmCommunicator::AbortEpoch(ShmOptions(Group(2), mapping),
                                          absl::UnavailableError("executor 1 was killed")));
  });
  EXPECT_THAT(JoinAndSum(ShmOptions(Group(2), mapping), 0, 1),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("executor 1 was killed")));
  supervisor.join();
}

TEST(ShmCommunicatorTest, LongReasonsAreCut) {
  const SharedMapping mapping(ShmBytes(Group(1)));
  ASSERT_OK_AND_ASSIGN(auto comm, ShmCommunicator::Create(ShmOptions(Group(1), mapping)));
  comm->Abort(absl::InternalError(std::string(10000, 'x')));
  const absl::Status status = comm->Barrier();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("xxxx")));
  EXPECT_LT(status.message().size(), 512u);
}

TEST(ShmCommunicatorTest, ChannelsAreIndependentRowsOfOperations) {
  const SharedMapping mapping(ShmBytes(Group(2)));
  const auto run = [&](int rank, int channel) -> absl::Status {
    ShmCommunicator::Options options = ShmOptions(Group(2), mapping);
    options.rank = rank;
    options.channel = channel;
    ASSIGN_OR_RETURN(auto comm, ShmCommunicator::Create(options));
    for (int i = 0; i < 200 * (channel + 1); ++i) {
      double value = channel;
      RETURN_IF_ERROR(comm->AllReduce(&value, 1, DType::kFp64, ReduceOp::kSum, 1));
      RANK_EXPECT(value == 2 * channel);
    }
    return absl::OkStatus();
  };
  absl::Status statuses[4];
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { statuses[i] = run(i % 2, i / 2); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_OK(status);
}

// Ranks that cannot read each other's memory bring everything through the staging area.
TEST(ShmCommunicatorTest, LargeAllGatherCopiesEachByteOnceWhereAllRanksCanReadEachOther) {
  constexpr int64_t kBytes = 200'000;
  const auto copied = [&](bool last_one_reads) {
    const SharedMapping mapping(ShmBytes(Group(3)));
    std::vector<int64_t> copied(3, 0);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        ShmCommunicator::Options options = ShmOptions(Group(3), mapping);
        options.rank = rank;
        options.reads_peers_memory = rank < 2 || last_one_reads;
        auto comm = ShmCommunicator::Create(options);
        ASSERT_OK(comm);
        const std::vector<char> send(kBytes, static_cast<char>(rank));
        std::vector<char> recv(3 * kBytes, -1);
        ASSERT_OK((*comm)->AllGather(send.data(), recv.data(), kBytes));
        for (int64_t i = 0; i < 3 * kBytes; ++i) ASSERT_EQ(recv[i], i / kBytes);
        copied[rank] = (*comm)->payload_bytes_copied();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return copied;
  };
  EXPECT_THAT(copied(true), Each(3 * kBytes));
  EXPECT_THAT(copied(false), Each(4 * kBytes));
}

// Rank 1 has read what it needs, entered the last phase and died when rank 0 comes to read its
// memory: for rank 0 nobody is missing in that phase.
TEST(ShmCommunicatorTest, RankThatReadsTheMemoryOfADeadOneWaitsForItsSupervisorsReason) {
  const SharedMapping mapping(ShmBytes(Group(2)));
  const SharedMapping shared(4096);
  auto* go = reinterpret_cast<std::atomic<bool>*>(shared.data());
  const auto gather = [&](int rank) -> absl::Status {
    ShmCommunicator::Options options = ShmOptions(Group(2), mapping);
    options.rank = rank;
    ASSIGN_OR_RETURN(auto comm, ShmCommunicator::Create(options));
    while (rank == 1 && !go->load()) std::this_thread::yield();
    const std::vector<char> send(200'000, 1);
    std::vector<char> all(2 * send.size());
    return comm->AllGather(send.data(), all.data(), send.size());
  };
  RankProcess reader([&] { return gather(0); });
  RankProcess dead([&] { return gather(1); });
  const ShmRegion region(mapping.data(), 2, 2, 16 << 10);
  const auto await_phase = [&](int rank, uint32_t phase) {
    while (region.slot(0, rank)->arrived.value.load() < phase) std::this_thread::yield();
  };
  await_phase(0, 1);
  ASSERT_EQ(kill(reader.pid(), SIGSTOP), 0);
  int state = 0;
  ASSERT_EQ(waitpid(reader.pid(), &state, WUNTRACED), reader.pid());
  ASSERT_TRUE(WIFSTOPPED(state));
  go->store(true);
  await_phase(1, 2);
  dead.Kill();
  EXPECT_FALSE(dead.Join().ok());
  ASSERT_EQ(kill(reader.pid(), SIGCONT), 0);
  while (StateOf(reader.pid()) != 'S' && StateOf(reader.pid()) != 'Z') std::this_thread::yield();
  ASSERT_OK(ShmCommunicator::AbortEpoch(ShmOptions(Group(2), mapping),
                                        absl::UnavailableError("rank 1 was killed")));
  EXPECT_THAT(reader.Join(), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 was killed")));
}

// Rank 1 dies wherever it happens to be in a row of operations; a supervisor aborts the epoch; all
// ranks, one of them new, continue in the next epoch on the same mapping, which nobody cleans.
TEST(ShmCommunicatorTest, NewEpochWorksAfterARankIsKilledAnywhere) {
  constexpr int kSize = 3;
  const SharedMapping mapping(ShmBytes(Group(kSize)));
  const SharedMapping progress(4096);
  auto* counter = reinterpret_cast<std::atomic<uint64_t>*>(progress.data());
  for (uint32_t epoch = 1; epoch <= 12; ++epoch) {
    SCOPED_TRACE(epoch);
    counter->store(0);
    const auto churn = [&](int rank) -> absl::Status {
      ShmCommunicator::Options options = ShmOptions(Group(kSize), mapping);
      options.rank = rank;
      options.epoch = 2 * epoch;
      ASSIGN_OR_RETURN(auto comm, ShmCommunicator::Create(options));
      std::vector<float> data(20000, 1.0f), all(kSize * data.size());
      while (true) {
        RETURN_IF_ERROR(comm->AllGather(data.data(), all.data(), data.size() * sizeof(float)));
        RETURN_IF_ERROR(comm->AllReduce(data.data(), data.size(), DType::kFp32, ReduceOp::kMax, 1));
        RETURN_IF_ERROR(comm->Barrier());
        counter->fetch_add(1);
      }
    };
    std::vector<RankProcess> ranks;
    for (int r = 0; r < kSize; ++r) ranks.emplace_back([&, r] { return churn(r); });
    while (counter->load() < 7 * epoch) std::this_thread::yield();
    ranks[1].Kill();
    EXPECT_THAT(ranks[1].Join(), StatusIs(absl::StatusCode::kInternal, HasSubstr("signal 9")));
    ShmCommunicator::Options options = ShmOptions(Group(kSize), mapping);
    options.epoch = 2 * epoch;
    ASSERT_OK(ShmCommunicator::AbortEpoch(options, absl::UnavailableError("rank 1 was killed")));
    for (int r : {0, 2}) {
      EXPECT_THAT(ranks[r].Join(),
                  StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 was killed")));
    }
    std::vector<RankProcess> successors;
    for (int r = 0; r < kSize; ++r) {
      successors.emplace_back(
          [&, r] { return JoinAndSum(ShmOptions(Group(kSize), mapping), r, 2 * epoch + 1); });
    }
    for (RankProcess& rank : successors) EXPECT_OK(rank.Join());
  }
}

}  // namespace
}  // namespace tessera
