// Where the coordinator places jobs, and how it handles a worker that does not do its part. Time is
// simulated: nothing here waits.
#include <algorithm>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

JobSpecPtr Spec(int32_t world_size, int64_t rows = 8) {
  JobConfig config;
  config.world_size = world_size;
  ModelSpec model;
  model.units = {{"root", {TensorSpec{"w", {rows, 4}, DType::kFp32, true, ""}}}};
  return *MakeJobSpec(model, config, 0);
}

class CoordinatorPlacementTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kPrepareTimeout = absl::Seconds(30);

  template <typename Call>
  auto Run(Call call) {
    effects_ = {};
    auto result = call(&effects_);
    core_.Accept();
    journal_.insert(journal_.end(), effects_.records.begin(), effects_.records.end());
    return result;
  }
  void Register(const std::string& worker, int32_t num_devices, int64_t incarnation = 1,
                int64_t memory_bytes = 0) {
    Member member;
    member.incarnation = Incarnation(incarnation);
    member.num_devices = num_devices;
    member.memory_bytes = memory_bytes;
    ASSERT_OK(Run([&](Effects* e) { return BeginLife(worker, member, e); }));
  }
  absl::Status BeginLife(const std::string& worker, const Member& member, Effects* effects) {
    RETURN_IF_ERROR(core_.RegisterWorker(WorkerId(worker), member, now_, effects));
    if (member.incarnation == Incarnation(1)) return absl::OkStatus();
    RETURN_IF_ERROR(core_.Connect({WorkerId(worker), member.incarnation}, now_, effects));
    core_.Disconnected(WorkerId(worker));
    return absl::OkStatus();
  }
  void Create(const std::string& job, int32_t world_size, int64_t rows = 8) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.CreateJob({"create " + job, JobId(job), Spec(world_size, rows)}, now_, e);
    }));
  }
  void Prepared(const std::string& worker, const std::string& job, int64_t epoch,
                int64_t decided_step = 0) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportPrepared({WorkerId(worker), Incarnation(1)},
                                  {JobId(job), GenerationOf(job), Epoch(epoch), Step(decided_step)},
                                  now_, e);
    }));
  }
  void Fail(const std::string& worker, const std::string& job) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportFailure(
          {WorkerId(worker), Incarnation(1)},
          {JobId(job), GenerationOf(job), StatusOf(job).epoch, Rank(0), "test"}, now_, e);
    }));
  }
  // "job" of one rank runs on "a" in epoch 2, after `steps` steps; "b" has room too.
  void StartOnAWithRoomOnB(int64_t steps) {
    Register("a", 1);
    Create("job", 1);
    Register("b", 1);
    Prepared("a", "job", 1);
    Fail("a", "job");
    Prepared("a", "job", 2, steps);
    ASSERT_EQ(StatusOf("job").state, JobState::kRunning);
  }
  // "a" says of each of the two ranks of a job with what attachment its trainer is done (0: it is
  // not), and whether it has a trainer.
  void HearOfTrainers(const std::string& job, std::vector<int64_t> finished,
                      bool attached = false) {
    JobProgress progress{JobId(job), GenerationOf(job), StatusOf(job).epoch, {}};
    for (size_t rank = 0; rank < finished.size(); ++rank) {
      progress.ranks[rank].finished = Incarnation(finished[rank]);
      progress.ranks[rank].attached = attached;
    }
    ASSERT_OK(Run([&](Effects* e) {
      return core_.Heartbeat({WorkerId("a"), Incarnation(1)}, {progress}, now_, e);
    }));
  }
  absl::Status CreateAgain(const std::string& job, const std::string& request) {
    return Run([&](Effects* e) {
      return core_.CreateJob({request, JobId(job), Spec(2)}, now_, e).status();
    });
  }
  int CountDrops() const {
    return std::count_if(effects_.commands.begin(), effects_.commands.end(), [](const Outgoing& o) {
      return std::holds_alternative<DropJob>(o.command);
    });
  }
  // As if every batch of records had been journalled.
  void RestartCoordinator() {
    absl::StatusOr<Coordinator> again = Coordinator::Restore(Options(), journal_, now_);
    ASSERT_OK(again);
    core_ = *std::move(again);
  }
  // Time passes; `alive` sends heartbeats and does nothing else.
  void Pass(absl::Duration time, const std::vector<std::string>& alive) {
    for (absl::Duration t; t < time; t += absl::Seconds(1)) {
      now_ += absl::Seconds(1);
      for (const std::string& worker : alive) {
        ASSERT_OK(Run([&](Effects* e) {
          return core_.Heartbeat({WorkerId(worker), Incarnation(1)}, {}, now_, e);
        }));
      }
      Run([&](Effects* e) {
        core_.Tick(now_, e);
        return 0;
      });
    }
  }
  JobStatus StatusOf(const std::string& job) { return core_.GetJob(JobId(job))->status; }
  Generation GenerationOf(const std::string& job) { return core_.GetJob(JobId(job))->generation; }
  std::string WorkerOf(const std::string& job) {
    return StatusOf(job).placements[0].worker.value();
  }

  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.prepare_timeout = kPrepareTimeout;
    return options;
  }
  absl::Time now_ = absl::UnixEpoch();
  Coordinator core_{Options()};
  Effects effects_;
  std::vector<StateRecord> journal_;
};

TEST_F(CoordinatorPlacementTest, JobThatFitsOnlyOnTwoWorkersWaitsAndSaysForWhat) {
  Register("a", 3);
  Register("b", 2);
  Create("big", 4);
  EXPECT_EQ(StatusOf("big").state, JobState::kWaiting);
  EXPECT_EQ(StatusOf("big").epoch, Epoch(0)) << "no epoch is tried that no worker can hold";
  EXPECT_THAT(StatusOf("big").reason,
              HasSubstr("needs 4 devices on one worker; largest free: 3 on 'a'"));
  Register("c", 4);
  EXPECT_EQ(StatusOf("big").state, JobState::kStarting);
  EXPECT_EQ(WorkerOf("big"), "c");
}

TEST_F(CoordinatorPlacementTest, CompletedJobGivesItsDevicesAwayAndContinuesOnceTheyAreFree) {
  Register("a", 2);
  Create("first", 2);
  Prepared("a", "first", 1);
  Create("next", 2);
  EXPECT_THAT(StatusOf("next").reason, HasSubstr("devices are held by job 'first'"));
  HearOfTrainers("first", {4, 0});
  EXPECT_FALSE(StatusOf("first").completed) << "one rank's absence says nothing";
  HearOfTrainers("first", {4, 5});
  EXPECT_TRUE(StatusOf("first").completed);
  EXPECT_EQ(StatusOf("first").state, JobState::kRunning) << "its workers keep its state";
  EXPECT_EQ(StatusOf("next").state, JobState::kStarting);
  EXPECT_EQ(CountDrops(), 0);
  RestartCoordinator();
  EXPECT_TRUE(StatusOf("first").completed);
  EXPECT_THAT(CreateAgain("first", "again"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("job 'next' got its devices: wait until they are completed")));
  Prepared("a", "next", 1);
  HearOfTrainers("next", {6, 7});
  ASSERT_OK(CreateAgain("first", "once more"));
  EXPECT_FALSE(StatusOf("first").completed);
  EXPECT_EQ(StatusOf("first").epoch, Epoch(1)) << "as it was left";
}

TEST_F(CoordinatorPlacementTest, WhatWasHeardBeforeAJobWasContinuedDoesNotCompleteItAgain) {
  Register("a", 2);
  Create("job", 2);
  Prepared("a", "job", 1);
  HearOfTrainers("job", {4, 5});
  ASSERT_OK(CreateAgain("job", "again"));
  HearOfTrainers("job", {4, 5});  // Its trainers are on their way.
  EXPECT_FALSE(StatusOf("job").completed);
  HearOfTrainers("job", {6, 5});
  EXPECT_FALSE(StatusOf("job").completed) << "rank 1's trainer has not come again";
  RestartCoordinator();
  HearOfTrainers("job", {6, 5});
  EXPECT_FALSE(StatusOf("job").completed);
  Fail("a", "job");  // And in another epoch.
  Prepared("a", "job", 2);
  HearOfTrainers("job", {6, 5});
  EXPECT_FALSE(StatusOf("job").completed);
  HearOfTrainers("job", {0, 0}, /*attached=*/true);
  HearOfTrainers("job", {6, 7});
  EXPECT_TRUE(StatusOf("job").completed);
  // A trainer may come without a word to the coordinator.
  HearOfTrainers("job", {0, 0}, /*attached=*/true);
  EXPECT_FALSE(StatusOf("job").completed);
}

TEST_F(CoordinatorPlacementTest, CompletedJobWhoseWorkerIsGoneIsLostAsAnyOther) {
  Register("a", 2);
  Create("job", 2);
  Prepared("a", "job", 1);
  Fail("a", "job");
  Prepared("a", "job", 2, /*decided_step=*/3);
  HearOfTrainers("job", {4, 5});
  ASSERT_TRUE(StatusOf("job").completed);
  Fail("a", "job");
  EXPECT_TRUE(StatusOf("job").completed) << "an executor that ended wakes nobody";
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting);
  Register("a", 2, /*incarnation=*/2);
  EXPECT_EQ(StatusOf("job").state, JobState::kLost);
  const std::string why = StatusOf("job").reason;
  ASSERT_OK(CreateAgain("job", "again"));
  EXPECT_EQ(StatusOf("job").reason, why) << "which says what to do";
}

TEST_F(CoordinatorPlacementTest, JobThatNeedsMoreMemoryThanAWorkerHasWaitsAndSaysTheBytes) {
  constexpr int64_t kGib = int64_t{1} << 30;
  Register("a", 4, 1, 20 * kGib);
  Create("big", 4, int64_t{1} << 34);  // 256 GiB of parameters.
  EXPECT_EQ(StatusOf("big").state, JobState::kWaiting);
  EXPECT_EQ(StatusOf("big").epoch, Epoch(0)) << "no epoch is tried that no worker can hold";
  EXPECT_THAT(StatusOf("big").reason, AllOf(HasSubstr("4 ranks need 3.0 TiB of memory"),
                                            HasSubstr("'a' has 20.0 GiB free of 20.0 GiB")));
  Create("small", 4);
  EXPECT_EQ(WorkerOf("small"), "a") << "one that does not fit keeps nobody else waiting";
}

TEST_F(CoordinatorPlacementTest, MemoryThatOtherJobsHaveIsNotFree) {
  const int64_t of_two = Spec(2, 1 << 20)->cpu_host_memory.BytesOf(2);
  Register("a", 4, 1, of_two * 3 / 2);
  Create("first", 2, 1 << 20);
  EXPECT_EQ(WorkerOf("first"), "a");
  Create("second", 2, 1 << 20);
  EXPECT_EQ(StatusOf("second").state, JobState::kWaiting);
  EXPECT_EQ(core_.claims().bytes.at(WorkerId("a")), of_two);
  ASSERT_OK(Run([&](Effects* e) {
    return core_.DeleteJob({"delete first", JobId("first")}, now_, e);
  }));
  EXPECT_EQ(WorkerOf("second"), "a");
  EXPECT_EQ(StatusOf("second").state, JobState::kStarting);
}

TEST_F(CoordinatorPlacementTest, WorkerWithMoreDevicesThanMemoryGetsAsManyRanksAsFit) {
  const HostMemory need = Spec(4, 1 << 20)->cpu_host_memory;
  Member member;
  member.incarnation = Incarnation(1);
  member.num_devices = 4;
  member.data_host = "10.0.0.1";
  member.memory_bytes = need.BytesOf(2);
  for (const char* worker : {"a", "b"})
    ASSERT_OK(Run([&](Effects* e) { return BeginLife(worker, member, e); }));
  Create("job", 4, 1 << 20);
  std::vector<std::string> workers;
  for (const RankPlacement& placement : StatusOf("job").placements)
    workers.push_back(placement.worker.value());
  EXPECT_EQ(workers, (std::vector<std::string>{"a", "a", "b", "b"}));
}

TEST_F(CoordinatorPlacementTest, JobsShareOneSetOfWorkersAndWaitForEachOther) {
  Register("a", 4);
  Register("b", 2);
  Create("small", 2);
  EXPECT_EQ(WorkerOf("small"), "b") << "the larger worker is kept for a larger job";
  Create("large", 3);
  EXPECT_EQ(WorkerOf("large"), "a");
  Create("next", 2);
  EXPECT_THAT(StatusOf("next").reason, HasSubstr("largest free: 1 on 'a'"));
  ASSERT_OK(Run([&](Effects* e) { return core_.DeleteJob({"delete", JobId("large")}, now_, e); }));
  EXPECT_EQ(StatusOf("next").state, JobState::kStarting);
  EXPECT_EQ(WorkerOf("next"), "a");
  Prepared("b", "small", 1);
  EXPECT_EQ(StatusOf("small").state, JobState::kRunning) << "and nobody else was disturbed";
  EXPECT_EQ(StatusOf("small").epoch, Epoch(1));
}

TEST_F(CoordinatorPlacementTest, WorkerThatLivesButNeverPreparesLosesTheJobAfterTheDeadline) {
  Register("a", 2);
  Create("job", 2);
  Register("b", 4);
  ASSERT_EQ(WorkerOf("job"), "a");
  Pass(kPrepareTimeout - absl::Seconds(1), {"a", "b"});
  EXPECT_EQ(StatusOf("job").epoch, Epoch(1)) << "not before the deadline";
  Pass(absl::Seconds(3), {"a", "b"});
  EXPECT_EQ(StatusOf("job").epoch, Epoch(2));
  EXPECT_EQ(WorkerOf("job"), "b");
  EXPECT_THAT(StatusOf("job").reason, HasSubstr("worker 'a' did not prepare epoch 1 within 30s"));
  Prepared("b", "job", 2);
  EXPECT_EQ(StatusOf("job").state, JobState::kRunning);
}

TEST_F(CoordinatorPlacementTest, WithNoOtherWorkerTheJobWaitsByNameUntilTheWorkerAnswers) {
  Register("a", 2);
  Create("job", 2);
  Pass(kPrepareTimeout + absl::Seconds(2), {"a"});
  EXPECT_EQ(StatusOf("job").state, JobState::kWaiting);
  EXPECT_THAT(StatusOf("job").reason,
              AllOf(HasSubstr("worker 'a' did not prepare epoch 1 within 30s"),
                    HasSubstr("largest free: none; 'a' is left out")));
  const Epoch waiting = StatusOf("job").epoch;
  Prepared("a", "job", waiting.value());
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting);
  EXPECT_GT(StatusOf("job").epoch, waiting);
  EXPECT_THAT(StatusOf("job").reason, Not(HasSubstr("left out")));
}

TEST_F(CoordinatorPlacementTest, WorkerThatStartedAgainIsTriedAtOnce) {
  Register("a", 2);
  Create("job", 2);
  Pass(kPrepareTimeout + absl::Seconds(2), {"a"});
  ASSERT_EQ(StatusOf("job").state, JobState::kWaiting);
  Register("a", 2, /*incarnation=*/2);
  Pass(absl::Seconds(1), {});
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting);
}

TEST_F(CoordinatorPlacementTest, WorkerIsTriedAgainAfterALongTimeSoThatNoJobWaitsForEver) {
  Register("a", 2);
  Create("job", 2);
  Pass(kPrepareTimeout + absl::Seconds(2), {"a"});
  ASSERT_EQ(StatusOf("job").state, JobState::kWaiting);
  Pass(10 * kPrepareTimeout, {"a"});
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting);
}

TEST_F(CoordinatorPlacementTest, PreparedEpochThatIsPutOffIsNoFailureOfTheWorker) {
  Register("a", 1);
  Create("job", 1);
  for (int64_t epoch = 1; epoch <= 10; ++epoch) {
    Prepared("a", "job", epoch);
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportFailure({WorkerId("a"), Incarnation(1)},
                                 {JobId("job"), GenerationOf("job"), Epoch(epoch), Rank(0), "test"},
                                 now_, e);
    }));
  }
  Prepared("a", "job", 11);
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting) << "slowed down";
  Pass(absl::Seconds(60), {"a"});
  EXPECT_EQ(StatusOf("job").state, JobState::kRunning);
  EXPECT_EQ(StatusOf("job").epoch, Epoch(11));
}

TEST_F(CoordinatorPlacementTest, JobThatAWorkerCannotHoldGoesToAnotherOrWaitsAndSaysWhy) {
  Register("a", 1);
  Register("b", 1);
  Create("job", 1);
  const auto refuse = [&](const std::string& worker) {
    return Run([&](Effects* e) {
      return core_.ReportFailure(
          {WorkerId(worker), Incarnation(1)},
          {JobId("job"), GenerationOf("job"), StatusOf("job").epoch, Rank(-1), "no memory"}, now_,
          e);
    });
  };
  EXPECT_THAT(refuse("b"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no rank -1")));
  ASSERT_OK(refuse("a"));
  Pass(absl::Seconds(1), {"a", "b"});
  EXPECT_EQ(StatusOf("job").placements[0].worker, WorkerId("b"));
  ASSERT_OK(refuse("b"));
  Pass(absl::Seconds(1), {"a", "b"});
  EXPECT_EQ(StatusOf("job").state, JobState::kWaiting);
  EXPECT_THAT(StatusOf("job").reason, HasSubstr("worker 'b' failed: no memory"));
  const Epoch waits_in = StatusOf("job").epoch;
  Pass(absl::Seconds(60), {"a", "b"});
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting) << "asked again";
  EXPECT_LT(StatusOf("job").epoch, Epoch(waits_in.value() + 10));
  Prepared(StatusOf("job").placements[0].worker.value(), "job", StatusOf("job").epoch.value());
  EXPECT_EQ(StatusOf("job").state, JobState::kRunning) << "once it can";
}

TEST_F(CoordinatorPlacementTest, SilentWorkerKeepsTheShardsAndTheJobWaitsForItByName) {
  for (const int64_t steps : {0, 5}) {  // Steps may have been decided that nobody reported.
    SCOPED_TRACE(steps);
    core_ = Coordinator(Options());
    ASSERT_NO_FATAL_FAILURE(StartOnAWithRoomOnB(steps));
    Pass(absl::Seconds(30), {"b"});
    EXPECT_EQ(StatusOf("job").state, JobState::kWaiting);
    EXPECT_THAT(StatusOf("job").reason,
                HasSubstr("worker 'a' does not answer; needs worker 'a', which holds its shards"));
    const Epoch waiting = StatusOf("job").epoch;
    Pass(absl::Seconds(600), {"b"});
    EXPECT_EQ(StatusOf("job").epoch, waiting) << "no epoch that could only fail";
    ASSERT_OK(Run([&](Effects* e) {
      const JobProgress progress{JobId("job"), GenerationOf("job"), Epoch(2), {}};
      return core_.Heartbeat({WorkerId("a"), Incarnation(1)}, {progress}, now_, e);
    }));
    EXPECT_EQ(CountDrops(), 0);
    EXPECT_EQ(StatusOf("job").state, JobState::kStarting);
    EXPECT_EQ(WorkerOf("job"), "a");
    Prepared("a", "job", StatusOf("job").epoch.value(), steps + 1);
    EXPECT_EQ(StatusOf("job").state, JobState::kRunning);
    EXPECT_EQ(StatusOf("job").resume_step, Step(steps + 1));
  }
}

TEST_F(CoordinatorPlacementTest, WorkerThatDoesNotPrepareKeepsTheShardsToo) {
  ASSERT_NO_FATAL_FAILURE(StartOnAWithRoomOnB(5));
  Fail("a", "job");
  Pass(kPrepareTimeout + absl::Seconds(2), {"a", "b"});
  EXPECT_EQ(StatusOf("job").state, JobState::kWaiting);
  EXPECT_THAT(StatusOf("job").reason, HasSubstr("needs worker 'a', which holds its shards"));
  RestartCoordinator();
  EXPECT_THAT(StatusOf("job").reason, HasSubstr("needs worker 'a', which holds its shards"));
  Prepared("a", "job", StatusOf("job").epoch.value(), 5);
  Pass(absl::Seconds(1), {"a", "b"});
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting);
  EXPECT_EQ(WorkerOf("job"), "a");
}

TEST_F(CoordinatorPlacementTest, SecondWorkerOfANameTakesNothingFromTheFirstWhileThatIsThere) {
  ASSERT_NO_FATAL_FAILURE(StartOnAWithRoomOnB(5));
  const auto second = [&] {
    Member member;
    member.incarnation = Incarnation(2);
    member.num_devices = 1;
    return Run([&](Effects* e) { return BeginLife("a", member, e); });
  };
  ASSERT_OK(Run([&](Effects* e) {
    return core_.Connect({WorkerId("a"), Incarnation(1)}, now_, e);
  }));
  EXPECT_THAT(second(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'a'")));
  RestartCoordinator();
  EXPECT_THAT(second(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'a'")))
      << "it has not connected again yet";
  EXPECT_EQ(StatusOf("job").state, JobState::kRunning);
  core_.Disconnected(WorkerId("a"));
  EXPECT_OK(second());
  EXPECT_EQ(StatusOf("job").state, JobState::kLost);
}

TEST_F(CoordinatorPlacementTest, JobIsLostWithTheMemoryOfItsWorkerSaysSoAndHoldsNoDevice) {
  ASSERT_NO_FATAL_FAILURE(StartOnAWithRoomOnB(5));
  Register("a", 1, /*incarnation=*/2);
  EXPECT_EQ(CountDrops(), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(StatusOf("job").state, JobState::kLost);
    EXPECT_EQ(StatusOf("job").epoch, Epoch(2));
    EXPECT_THAT(
        StatusOf("job").reason,
        AllOf(HasSubstr(
                  "its shards are gone with the memory of worker 'a' (worker 'a' started again)"),
              HasSubstr("delete the job")));
    Pass(absl::Seconds(600), {"b"});
    RestartCoordinator();
  }
  Register("a", 1, /*incarnation=*/3);
  Create("next", 1);
  Create("after", 1);
  EXPECT_EQ(StatusOf("next").state, JobState::kStarting);
  EXPECT_EQ(StatusOf("after").state, JobState::kStarting);
  EXPECT_EQ(StatusOf("job").state, JobState::kLost);
  ASSERT_OK(Run([&](Effects* e) { return core_.DeleteJob({"delete", JobId("job")}, now_, e); }));
}

TEST_F(CoordinatorPlacementTest, JobWithoutACommittedStepBeginsAnewAfterItsWorkerRestarts) {
  ASSERT_NO_FATAL_FAILURE(StartOnAWithRoomOnB(0));
  Register("a", 1, /*incarnation=*/2);
  EXPECT_EQ(StatusOf("job").state, JobState::kStarting);
  EXPECT_EQ(StatusOf("job").epoch, Epoch(3));
  Pass(absl::Seconds(30), {"b"});
  EXPECT_EQ(WorkerOf("job"), "b") << "the new life of 'a' had not begun the epoch";
}

}  // namespace
}  // namespace tessera::coordinator
