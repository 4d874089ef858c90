// Hybrid jobs, in which each worker holds all shards: a worker that lost its memory gets it from
// another one. Time is simulated: nothing here waits.
#include <map>

#include "base/status_matchers.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const JobId kJob("job");

class CoordinatorReplicasTest : public ::testing::Test {
 protected:
  template <typename Call>
  auto Run(Call call) {
    effects_ = {};
    auto result = call(&effects_);
    core_.Accept();
    return result;
  }
  // A life of the worker, the first or the next one, with two devices.
  void Register(const std::string& worker) {
    ++lives_[worker];
    Return(worker);
  }
  // The same life is back.
  void Return(const std::string& worker) {
    Member member;
    member.incarnation = Incarnation(lives_[worker]);
    member.num_devices = 2;
    member.data_host = "127.0.0.1";
    core_.Disconnected(WorkerId(worker));
    ASSERT_OK(Run([&](Effects* e) {
      const absl::Status status = core_.RegisterWorker(WorkerId(worker), member, now_, e);
      if (!status.ok() || lives_[worker] == 1) return status;
      return core_.Connect(SenderOf(worker), now_, e);
    }));
    core_.Disconnected(WorkerId(worker));
  }
  Sender SenderOf(const std::string& worker) {
    return {WorkerId(worker), Incarnation(lives_[worker])};
  }
  void Create(Strategy strategy_of_second_unit = Strategy::kHybridShard) {
    JobConfig config;
    config.world_size = 4;
    config.shard_group_size = 2;
    config.strategy = Strategy::kHybridShard;
    ModelSpec model;
    model.units = {{"root", {TensorSpec{"w", {8, 4}, DType::kFp32, true, ""}}},
                   {"more", {TensorSpec{"more.w", {8, 4}, DType::kFp32, true, ""}}}};
    model.units[1].strategy = strategy_of_second_unit;
    auto spec = MakeJobSpec(model, config, 0);
    ASSERT_OK(spec);
    ASSERT_OK(Run([&](Effects* e) { return core_.CreateJob({"create", kJob, *spec}, now_, e); }));
  }
  void Prepared(const std::string& worker, int64_t decided_step, bool holds_nothing = false) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportPrepared(SenderOf(worker),
                                  {kJob,
                                   core_.GetJob(kJob)->generation,
                                   Status().epoch,
                                   Step(decided_step),
                                   {},
                                   "decision",
                                   holds_nothing},
                                  now_, e);
    }));
  }
  // Two steps of the job on "a" and "b".
  void Train(Strategy strategy_of_second_unit = Strategy::kHybridShard) {
    Register("a");
    Register("b");
    Create(strategy_of_second_unit);
    Prepared("a", 0);
    Prepared("b", 0);
    ASSERT_EQ(Status().state, JobState::kRunning);
    for (int64_t step = 1; step <= 2; ++step) TakeStep(step);
  }
  void TakeStep(int64_t step) {
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_OK(Run([&](Effects* e) {
        return core_.ReportStep(
            SenderOf(Workers()[rank]),
            {kJob, core_.GetJob(kJob)->generation, Status().epoch, Rank(rank), Step(step), 7, {}},
            now_, e);
      }));
    }
  }
  // Time passes; only these send heartbeats.
  void Pass(absl::Duration time, const std::vector<std::string>& alive) {
    for (absl::Duration t; t < time; t += absl::Seconds(1)) {
      now_ += absl::Seconds(1);
      for (const std::string& worker : alive) {
        ASSERT_OK(Run([&](Effects* e) { return core_.Heartbeat(SenderOf(worker), {}, now_, e); }));
      }
      Run([&](Effects* e) {
        core_.Tick(now_, e);
        return 0;
      });
    }
  }
  JobStatus Status() { return core_.GetJob(kJob)->status; }
  std::vector<std::string> Workers() {
    std::vector<std::string> workers;
    for (const RankPlacement& place : Status().placements) workers.push_back(place.worker.value());
    return workers;
  }
  std::vector<int64_t> Since() {
    std::vector<int64_t> since;
    for (const RankPlacement& place : Status().placements) since.push_back(place.since.value());
    return since;
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::map<std::string, int64_t> lives_;
  Effects effects_;
  Coordinator core_{CoordinatorOptions()};
};

TEST_F(CoordinatorReplicasTest, RestartedWorkerIsRebuiltFromTheOther) {
  Train();
  Register("b");
  EXPECT_EQ(Status().state, JobState::kStarting);
  EXPECT_TRUE(Status().bound);
  EXPECT_THAT(Workers(), ElementsAre("a", "a", "b", "b"));
  EXPECT_THAT(Since(), ElementsAre(1, 1, 2, 2));
  Prepared("b", 0, /*holds_nothing=*/true);
  Prepared("a", 2);
  ASSERT_EQ(Status().state, JobState::kRunning);
  EXPECT_EQ(Status().resume_step, Step(2));
  EXPECT_THAT(Status().rebuilt_ranks, ElementsAre(2, 3));
  int num_starts = 0;
  for (const Outgoing& out : effects_.commands) {
    const auto* start = std::get_if<StartEpoch>(&out.command);
    if (start == nullptr) continue;
    EXPECT_THAT(start->rebuilt_ranks, ElementsAre(2, 3));
    ++num_starts;
  }
  EXPECT_EQ(num_starts, 2);
}

TEST_F(CoordinatorReplicasTest, WorkerThatDiedWhileItWasRebuiltIsRebuiltAgain) {
  Train();
  for (int64_t epoch = 2; epoch <= 4; ++epoch) {
    Register("b");
    Prepared("b", 0, /*holds_nothing=*/true);
    Prepared("a", 2);
    ASSERT_EQ(Status().state, JobState::kRunning) << epoch;
    EXPECT_THAT(Status().rebuilt_ranks, ElementsAre(2, 3));
  }
  // The next epoch finds it complete.
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(SenderOf("a"),
                               {kJob, core_.GetJob(kJob)->generation, Status().epoch, Rank(0), "x"},
                               now_, e);
  }));
  Pass(absl::Seconds(1), {"a", "b"});
  Prepared("a", 2);
  Prepared("b", 2);
  ASSERT_EQ(Status().state, JobState::kRunning);
  EXPECT_THAT(Status().rebuilt_ranks, IsEmpty());
}

TEST_F(CoordinatorReplicasTest, SilentWorkersPlaceIsTakenByAnotherOne) {
  Train();
  Register("c");
  Pass(absl::Seconds(12), {"a", "c"});
  EXPECT_EQ(Status().state, JobState::kStarting);
  EXPECT_THAT(Workers(), ElementsAre("a", "a", "c", "c"));
  Prepared("a", 2);
  Prepared("c", 0, /*holds_nothing=*/true);
  ASSERT_EQ(Status().state, JobState::kRunning);
  EXPECT_THAT(Status().rebuilt_ranks, ElementsAre(2, 3));
  // A worker that returns too late has no ranks of the job.
  Return("b");
  ASSERT_OK(Run([&](Effects* e) {
    return core_.Heartbeat(SenderOf("b"), {{kJob, core_.GetJob(kJob)->generation, Epoch(1), {}}},
                           now_, e);
  }));
  ASSERT_EQ(effects_.commands.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<DropJob>(effects_.commands[0].command));
}

TEST_F(CoordinatorReplicasTest, WithoutRoomElsewhereTheSilentWorkerIsWaitedForAndKeepsItsMemory) {
  Train();
  Pass(absl::Seconds(12), {"a"});
  EXPECT_EQ(Status().state, JobState::kWaiting);
  EXPECT_THAT(Status().reason, HasSubstr("2 free devices"));
  Pass(absl::Seconds(1), {"a", "b"});
  EXPECT_EQ(Status().state, JobState::kStarting);
  EXPECT_THAT(Since(), ElementsAre(1, 1, 1, 1));
  Prepared("a", 2);
  Prepared("b", 2);
  ASSERT_EQ(Status().state, JobState::kRunning);
  EXPECT_THAT(Status().rebuilt_ranks, IsEmpty());
}

TEST_F(CoordinatorReplicasTest, WorkerThatHadAnotherLifeOfTheJobIsPlacedAnew) {
  Train();
  Register("c");
  Pass(absl::Seconds(12), {"a", "c"});
  Prepared("a", 2);
  Prepared("c", 0, /*holds_nothing=*/true);
  ASSERT_EQ(Status().state, JobState::kRunning);
  Return("b");  // It has the job of epoch 1.
  Pass(absl::Seconds(12), {"a", "b"});
  EXPECT_THAT(Workers(), ElementsAre("a", "a", "b", "b"));
  EXPECT_THAT(Since(), ElementsAre(1, 1, 3, 3));
}

// The worker to be rebuilt must not be taken for one that holds the job.
TEST_F(CoordinatorReplicasTest, WorkerThatFallsSilentBeforeItGaveItsShardsIsWaitedFor) {
  Train();
  Register("b");
  Register("c");
  Prepared("b", 0, /*holds_nothing=*/true);
  Pass(absl::Seconds(12), {"b", "c"});  // "a", which has everything, is silent.
  EXPECT_EQ(Status().state, JobState::kWaiting);
  EXPECT_THAT(Workers(), ElementsAre("a", "a", "b", "b"));
  Register("d");  // More room changes nothing.
  Pass(absl::Seconds(2), {"b", "c", "d"});
  EXPECT_EQ(Status().state, JobState::kWaiting);
  Return("a");
  Pass(absl::Seconds(1), {"a", "b", "c", "d"});
  EXPECT_EQ(Status().state, JobState::kStarting);
  Prepared("a", 2);
  Prepared("b", 0, /*holds_nothing=*/true);
  ASSERT_EQ(Status().state, JobState::kRunning);
  EXPECT_THAT(Status().rebuilt_ranks, ElementsAre(2, 3));
}

TEST_F(CoordinatorReplicasTest, WorkerThatFallsSilentInARebuildIsWaitedForUntilAStepWasTaken) {
  Train();
  Register("b");
  Register("c");
  Prepared("b", 0, /*holds_nothing=*/true);
  Prepared("a", 2);
  ASSERT_EQ(Status().state, JobState::kRunning);
  Pass(absl::Seconds(12), {"b", "c"});
  EXPECT_EQ(Status().state, JobState::kWaiting);
  Return("a");
  Pass(absl::Seconds(1), {"a", "b", "c"});
  Prepared("a", 2);
  Prepared("b", 0, /*holds_nothing=*/true);
  ASSERT_EQ(Status().state, JobState::kRunning);
  TakeStep(3);
  Pass(absl::Seconds(12), {"b", "c"});  // Now "b" has everything.
  EXPECT_EQ(Status().state, JobState::kStarting);
  EXPECT_THAT(Workers(), ElementsAre("c", "c", "b", "b"));
}

TEST_F(CoordinatorReplicasTest, WorkerThatCannotHoldTheReplicaIsPassedOver) {
  Train();
  Register("c");
  Register("d");
  Pass(absl::Seconds(12), {"a", "c", "d"});
  ASSERT_THAT(Workers(), ElementsAre("a", "a", "c", "c"));
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(
        SenderOf("c"), {kJob, core_.GetJob(kJob)->generation, Status().epoch, Rank(-1), "x"}, now_,
        e);
  }));
  Pass(absl::Seconds(2), {"a", "c", "d"});
  EXPECT_THAT(Workers(), ElementsAre("a", "a", "d", "d"));
}

TEST_F(CoordinatorReplicasTest, JobIsLostOnlyOnceNobodyHoldsIt) {
  Train();
  Register("b");
  Register("a");  // Before "b" received anything.
  Prepared("a", 0, /*holds_nothing=*/true);
  Prepared("b", 0, /*holds_nothing=*/true);
  EXPECT_EQ(Status().state, JobState::kLost);
}

TEST_F(CoordinatorReplicasTest, UnitThatIsCutOverAllRanksHasNoReplica) {
  Train(Strategy::kFullShard);
  Register("b");
  EXPECT_EQ(Status().state, JobState::kLost);
}

}  // namespace
}  // namespace tessera::coordinator
