#include "coordinator/core/coordinator.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const JobId kJob("gpt");

JobSpecPtr Spec(int32_t world_size, int32_t submitting_rank = 0, int64_t rows = 8) {
  JobConfig config;
  config.world_size = world_size;
  ModelSpec model;
  model.units = {{"root", {TensorSpec{"w", {rows, 4}, DType::kFp32, true, ""}}}};
  return *MakeJobSpec(model, config, submitting_rank);
}

// These tests check the protocol of several workers; see coordinator_placement_test.cc.
CoordinatorOptions Spread() {
  CoordinatorOptions options;
  options.placement = PlacementRule::kSpread;
  return options;
}

Sender Life(const std::string& worker, int64_t incarnation = 1) {
  return {WorkerId(worker), Incarnation(incarnation)};
}

class CoordinatorTest : public ::testing::Test {
 protected:
  // Calls a handler and accepts its effects, keeping the records as a journal would.
  template <typename Call>
  auto Run(Call call) {
    effects_ = {};
    auto result = call(&effects_);
    core_.Accept();
    for (const StateRecord& record : effects_.records) records_.push_back(record);
    for (const OrderRecord& record : effects_.order_records) records_.push_back(record);
    return result;
  }
  absl::Status Register(const std::string& worker, int32_t num_devices, int64_t incarnation = 1,
                        int32_t max_ranks_of_job = 0) {
    Member member;
    member.incarnation = Incarnation(incarnation);
    member.num_devices = num_devices;
    member.max_ranks_of_job = max_ranks_of_job;
    return Run([&](Effects* e) {
      const absl::Status status = core_.RegisterWorker(WorkerId(worker), member, now_, e);
      return status.ok() && incarnation > 1 ? core_.Connect(Life(worker, incarnation), now_, e)
                                            : status;
    });
  }
  absl::StatusOr<JobView> Create(const std::string& request, int32_t world_size) {
    auto view = Run([&](Effects* e) {
      return core_.CreateJob({request, kJob, Spec(world_size)}, now_, e);
    });
    if (view.ok()) generation_ = view->generation;
    return view;
  }
  absl::Status Prepared(const Sender& sender, int64_t epoch, int64_t decided = 0) {
    return Run([&](Effects* e) {
      return core_.ReportPrepared(sender, {kJob, generation_, Epoch(epoch), Step(decided)}, now_,
                                  e);
    });
  }
  absl::Status Fail(const Sender& sender, int64_t epoch, int64_t rank) {
    return Run([&](Effects* e) {
      return core_.ReportFailure(sender, {kJob, generation_, Epoch(epoch), Rank(rank), "test"},
                                 now_, e);
    });
  }
  absl::Status StepDone(const Sender& sender, int64_t epoch, int64_t rank, int64_t step,
                        uint64_t hash = 1, std::vector<uint64_t> earlier = {}) {
    return Run([&](Effects* e) {
      const StepReport report = {kJob,       generation_, Epoch(epoch),      Rank(rank),
                                 Step(step), hash,        std::move(earlier)};
      return core_.ReportStep(sender, report, now_, e);
    });
  }
  absl::Status Connect(const Sender& sender) {
    return Run([&](Effects* e) { return core_.Connect(sender, now_, e); });
  }
  absl::Status Beat(const Sender& sender, std::vector<JobProgress> jobs = {}) {
    return Run([&](Effects* e) { return core_.Heartbeat(sender, jobs, now_, e); });
  }
  // Lets time pass as a ticker would; effects of all ticks together.
  void Pass(absl::Duration time, const std::vector<Sender>& alive = {}) {
    Effects all;
    for (absl::Duration t; t < time; t += absl::Seconds(1)) {
      now_ += absl::Seconds(1);
      for (const Sender& sender : alive) EXPECT_OK(Beat(sender));
      Run([&](Effects* e) {
        core_.Tick(now_, e);
        return 0;
      });
      for (Outgoing& o : effects_.commands) all.commands.push_back(o);
    }
    effects_ = all;
  }
  void Restart() { ASSERT_OK_AND_ASSIGN(core_, Coordinator::Restore(Spread(), records_, now_)); }
  template <typename C>
  int Count() const {
    int count = 0;
    for (const Outgoing& o : effects_.commands) count += std::holds_alternative<C>(o.command);
    return count;
  }
  JobView Job() { return *core_.GetJob(kJob); }
  void StartTwoRanks() {
    ASSERT_OK(Register("a", 1));
    ASSERT_OK(Register("b", 1));
    ASSERT_OK(Create("r1", 2));
    ASSERT_OK(Prepared(Life("a"), 1));
    ASSERT_OK(Prepared(Life("b"), 1));
    ASSERT_EQ(Job().status.state, JobState::kRunning);
  }

  absl::Time now_ = absl::UnixEpoch();
  Coordinator core_{Spread()};
  std::vector<StateRecord> records_;
  Effects effects_;
  Generation generation_;  // Of the job.
};

TEST_F(CoordinatorTest, CodeOfATrainersErrorReachesAllWorkersOfTheEpochThatItEnded) {
  StartTwoRanks();
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(
        Life("a"), {kJob, generation_, Epoch(1), Rank(0), "rank 0: bad batch", 3}, now_, e);
  }));
  int told = 0;
  for (const Outgoing& outgoing : effects_.commands) {
    const auto* prepare = std::get_if<PrepareEpoch>(&outgoing.command);
    if (prepare == nullptr) continue;
    ++told;
    EXPECT_EQ(prepare->code, 3);
    EXPECT_THAT(prepare->reason, HasSubstr("rank 0: bad batch"));
  }
  EXPECT_EQ(told, 2);
}

TEST_F(CoordinatorTest, JobStartsOnceThereAreDevicesAndAllArePrepared) {
  ASSERT_OK(Create("r1", 2));
  EXPECT_EQ(Job().status.state, JobState::kWaiting);
  EXPECT_EQ(Job().status.epoch, Epoch(0));
  ASSERT_OK(Register("a", 1));
  EXPECT_EQ(Count<PrepareEpoch>(), 0);
  ASSERT_OK(Register("b", 2));
  EXPECT_EQ(Count<PrepareEpoch>(), 2);
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  ASSERT_OK(Prepared(Life("b"), 1));
  EXPECT_THAT(Job().status.reason, HasSubstr("not yet prepared: 'a'"));
  EXPECT_EQ(Count<StartEpoch>(), 0);
  ASSERT_OK(Prepared(Life("a"), 1));
  EXPECT_EQ(Count<StartEpoch>(), 2);
  EXPECT_EQ(Job().status.resume_step, Step(0));
  ASSERT_OK(Fail(Life("a"), 1, 0));
  ASSERT_OK(Prepared(Life("b"), 2, 3));
  ASSERT_OK(Prepared(Life("a"), 2, 0));
  EXPECT_EQ(Job().status.resume_step, Step(3));
  EXPECT_EQ(Job().committed_step, Step(3));
}

// As if sent to an older coordinator, which did not ask.
TEST_F(CoordinatorTest, WhatAWorkerSaysOfItselfWhenItRegistersAgainCounts) {
  ASSERT_OK(Create("r1", 3));
  ASSERT_OK(Register("a", 2));
  ASSERT_OK(Register("a", 2, /*incarnation=*/1, /*max_ranks_of_job=*/1));
  ASSERT_OK(Register("b", 1));
  EXPECT_EQ(Job().status.state, JobState::kWaiting);
  ASSERT_OK(Register("c", 1));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
}

TEST_F(CoordinatorTest, AnswersOfOtherEpochsDoNotCount) {
  ASSERT_OK(Register("a", 1));
  ASSERT_OK(Create("r1", 1));
  ASSERT_OK(Prepared(Life("a"), 2));
  ASSERT_OK(Prepared(Life("a"), 0));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
}

TEST_F(CoordinatorTest, FailuresOfOldEpochsAreIgnored) {
  StartTwoRanks();
  ASSERT_OK(Fail(Life("a"), 1, 0));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_EQ(Count<PrepareEpoch>(), 2);
  ASSERT_OK(Fail(Life("b"), 1, 1));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_THAT(effects_.records, IsEmpty());
}

TEST_F(CoordinatorTest, RepeatedFailuresWithoutAStepAreSlowedDown) {
  StartTwoRanks();
  ASSERT_OK(Fail(Life("a"), 1, 0));
  ASSERT_OK(Prepared(Life("a"), 2));
  ASSERT_OK(Prepared(Life("b"), 2));
  EXPECT_EQ(Job().status.state, JobState::kRunning);  // The first restart is not delayed.
  ASSERT_OK(Fail(Life("a"), 2, 0));
  ASSERT_OK(Prepared(Life("a"), 3));
  ASSERT_OK(Prepared(Life("b"), 3));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  Pass(absl::Seconds(1), {Life("a"), Life("b")});
  EXPECT_EQ(Job().status.state, JobState::kRunning);
}

TEST_F(CoordinatorTest, LostWorkerMakesTheJobWaitAndItsReturnResumesIt) {
  StartTwoRanks();
  const auto placements = Job().status.placements;
  Pass(absl::Seconds(11), {Life("a")});
  EXPECT_EQ(Job().status.state, JobState::kWaiting);
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_EQ(Count<PrepareEpoch>(), 1);  // The remaining worker stops what it runs.
  ASSERT_OK(Connect(Life("b")));
  EXPECT_EQ(Job().status.epoch, Epoch(3));
  EXPECT_EQ(Job().status.placements, placements);
  EXPECT_EQ(Count<PrepareEpoch>(), 2);
}

TEST_F(CoordinatorTest, RankWhoseWorkerIsSilentBeforeTheFirstEpochMovesToASpareDevice) {
  ASSERT_OK(Register("a", 1));
  ASSERT_OK(Register("b", 1));
  ASSERT_OK(Create("r1", 2));
  ASSERT_OK(Register("c", 1));
  Pass(absl::Seconds(11), {Life("a"), Life("c")});
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  EXPECT_EQ(Job().status.placements[0].worker, WorkerId("a"));
  EXPECT_EQ(Job().status.placements[1].worker, WorkerId("c"));
  // It was only slow: no job waits for it, and it may register again.
  EXPECT_THAT(Connect(Life("b")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'b'")));
  ASSERT_OK(Register("b", 1));
  ASSERT_OK(Beat(Life("b"), {{kJob, generation_, Epoch(1), {}}}));
  EXPECT_EQ(Count<DropJob>(), 1);
}

TEST_F(CoordinatorTest, NewIncarnationBeginsANewEpoch) {
  StartTwoRanks();
  ASSERT_OK(Register("b", 1, 2));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_THAT(Job().status.reason, HasSubstr("worker 'b' started again"));
  EXPECT_THAT(Prepared(Life("b", 1), 2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("stale")));
}

TEST_F(CoordinatorTest, RegistrationOfAProcessThatHasEndedTakesNothingFromTheNextOne) {
  StartTwoRanks();
  core_.Disconnected(WorkerId("b"));
  const auto registers = [&](const std::string& key) {
    Member member;
    member.incarnation = core_.IncarnationOf(WorkerId("b"), key);
    member.num_devices = 1;
    member.key = key;
    EXPECT_OK(
        Run([&](Effects* e) { return core_.RegisterWorker(WorkerId("b"), member, now_, e); }));
    return member.incarnation.value();
  };
  EXPECT_EQ(registers("second"), 2);
  EXPECT_EQ(Job().status.epoch, Epoch(1)) << "it has not said anything yet";
  EXPECT_EQ(registers("ended"), 3);
  EXPECT_EQ(registers("second"), 2);
  EXPECT_THAT(core_.CheckKey(WorkerId("b"), Incarnation(2), "ended"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("another process")));
  const auto connects = [&](int64_t incarnation) {
    return Run([&](Effects* e) { return core_.Connect(Life("b", incarnation), now_, e); });
  };
  ASSERT_OK(connects(2));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  core_.Disconnected(WorkerId("b"));
  EXPECT_EQ(registers("ended"), 3);
  ASSERT_OK(connects(2));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
}

TEST_F(CoordinatorTest, NextLifeIsBeyondOneThatAnOlderJournalDoesNotKnow) {
  StartTwoRanks();
  core_.Disconnected(WorkerId("b"));
  Member late;
  late.incarnation = Incarnation(7);  // As a later journal had numbered it.
  ASSERT_OK(Run([&](Effects* e) { return core_.RegisterWorker(WorkerId("b"), late, now_, e); }));
  EXPECT_EQ(core_.IncarnationOf(WorkerId("b"), "next"), Incarnation(8));
}

TEST_F(CoordinatorTest, JobWhosePartIsGoneWithStepsThatNobodyReportedIsLost) {
  StartTwoRanks();
  ASSERT_OK(Register("b", 1, 2));
  ASSERT_OK(Prepared(Life("b", 2), 2));
  ASSERT_EQ(Job().status.state, JobState::kStarting) << "no step was committed";
  ASSERT_OK(Prepared(Life("a"), 2, 1));
  EXPECT_EQ(Job().status.state, JobState::kLost);
  EXPECT_THAT(Job().status.reason, HasSubstr("a part of its shards is gone"));
}

TEST_F(CoordinatorTest, RestartDoesNotDisturbARunningJob) {
  StartTwoRanks();
  Restart();
  for (const Sender& sender : {Life("a"), Life("b")}) {
    ASSERT_OK(Connect(sender));
    EXPECT_EQ(Count<PrepareEpoch>(), 0);
    EXPECT_EQ(Count<StartEpoch>(), 1);
    ASSERT_OK(Beat(sender, {{kJob, generation_, Epoch(1), {}}}));
    EXPECT_THAT(effects_.commands, IsEmpty());
  }
  Pass(absl::Seconds(30), {Life("a"), Life("b")});
  EXPECT_EQ(Job().status.epoch, Epoch(1));
  EXPECT_EQ(Job().status.state, JobState::kRunning);
}

TEST_F(CoordinatorTest, AfterARestartWorkersHaveTheFullTimeoutToComeBack) {
  StartTwoRanks();
  Restart();
  Pass(absl::Seconds(9));
  EXPECT_EQ(Job().status.epoch, Epoch(1));
  Pass(absl::Seconds(1));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
}

TEST_F(CoordinatorTest, RestartWhileStartingAsksAgain) {
  StartTwoRanks();
  ASSERT_OK(Fail(Life("a"), 1, 0));
  ASSERT_OK(Prepared(Life("a"), 2, 2));
  Restart();
  ASSERT_OK(Connect(Life("a")));
  EXPECT_EQ(Count<PrepareEpoch>(), 1);
  ASSERT_OK(Prepared(Life("a"), 2, 2));
  ASSERT_OK(Connect(Life("a")));
  EXPECT_EQ(Count<PrepareEpoch>(), 0);
  ASSERT_OK(Prepared(Life("b"), 2, 0));
  EXPECT_EQ(Job().status.resume_step, Step(2));
}

TEST_F(CoordinatorTest, RestartInTheMiddleOfRecordingLosesNoRelease) {
  StartTwoRanks();
  const auto announce = [&](const std::string& worker, int64_t rank, int64_t sequence) {
    OrderAnnouncement event{kJob,       generation_,         Epoch(1),
                            Rank(rank), {Step(1), sequence}, {"unshard"}};
    event.entry.unit = UnitId(0);
    return Run([&](Effects* e) { return core_.Announce(Life(worker), event, now_, e); });
  };
  ASSERT_OK(announce("a", 0, 0));
  ASSERT_OK(announce("b", 1, 0));
  EXPECT_EQ(Count<OrderRelease>(), 2);
  Restart();  // "b" never saw its release, "a" did.
  ASSERT_OK(announce("a", 0, 1));
  EXPECT_EQ(Count<OrderRelease>(), 0);
  ASSERT_OK(announce("b", 1, 0));
  EXPECT_EQ(Count<OrderRelease>(), 1);
  ASSERT_OK(announce("b", 1, 1));
  EXPECT_EQ(Count<OrderRelease>(), 2);
  EXPECT_EQ(Job().status.epoch, Epoch(1));
}

TEST_F(CoordinatorTest, StepsAreJournalledOnceATickAndShownThen) {
  StartTwoRanks();
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(StepDone(Life("a"), 1, 0, step));
    ASSERT_OK(StepDone(Life("b"), 1, 1, step));
    EXPECT_THAT(effects_.records, IsEmpty());
  }
  EXPECT_EQ(Job().committed_step, Step(0));
  Pass(absl::Seconds(1), {Life("a"), Life("b")});
  EXPECT_EQ(Job().committed_step, Step(3));
  Restart();
  EXPECT_EQ(Job().committed_step, Step(3));
}

TEST_F(CoordinatorTest, NewEpochResumesFromAStepThatWasNotJournalledYet) {
  StartTwoRanks();
  ASSERT_OK(StepDone(Life("a"), 1, 0, 1));
  ASSERT_OK(StepDone(Life("b"), 1, 1, 1));
  ASSERT_OK(Fail(Life("a"), 1, 0));
  EXPECT_EQ(Job().committed_step, Step(1));
}

TEST_F(CoordinatorTest, DifferentHashesAreAMismatch) {
  StartTwoRanks();
  ASSERT_OK(StepDone(Life("a"), 1, 0, 1, 5));
  ASSERT_OK(StepDone(Life("b"), 1, 1, 1, 6));
  EXPECT_EQ(Count<OrderMismatch>(), 2);
  EXPECT_EQ(Count<PrepareEpoch>(), 2);
  EXPECT_THAT(std::get<OrderMismatch>(effects_.commands[0].command).message,
              HasSubstr("ranks 0 and 1 issued different operations in step 1"));
  EXPECT_FALSE(std::get<OrderMismatch>(effects_.commands[0].command).restart);
}

TEST_F(CoordinatorTest, RankIsShownWhereItWasUntilItIsInTheNextEpoch) {
  StartTwoRanks();
  const auto report = [&](int64_t epoch, int64_t step) {
    JobProgress progress{kJob, generation_, Epoch(epoch), {}};
    progress.ranks[0].step = Step(step);
    return Run([&](Effects* e) { return core_.Heartbeat(Life("a"), {progress}, now_, e); });
  };
  ASSERT_OK(report(1, 3));
  ASSERT_OK(Fail(Life("b"), 1, 1));
  ASSERT_OK(report(2, 0));
  EXPECT_EQ(Job().ranks.at(0).step, Step(3));
}

TEST_F(CoordinatorTest, OrdersThatDifferAfterALossRequireARestartOnceAtAStep) {
  StartTwoRanks();
  const auto begin_epoch = [&] {
    const int64_t epoch = Job().status.epoch.value();
    EXPECT_OK(Prepared(Life("a"), epoch));
    EXPECT_OK(Prepared(Life("b"), epoch));
    Pass(absl::Seconds(20), {Life("a"), Life("b")});
    EXPECT_EQ(Job().status.state, JobState::kRunning);
    return epoch;
  };
  const auto differ = [&](int64_t epoch, int64_t step) {
    EXPECT_OK(StepDone(Life("a"), epoch, 0, step, 5));
    EXPECT_OK(StepDone(Life("b"), epoch, 1, step, 6));
    EXPECT_EQ(Count<OrderMismatch>(), 2);
    return std::get<OrderMismatch>(effects_.commands[0].command).restart;
  };
  ASSERT_OK(Fail(Life("a"), 1, 0));
  EXPECT_TRUE(differ(begin_epoch(), 1));
  // All programs were started again.
  EXPECT_FALSE(differ(begin_epoch(), 1));
  ASSERT_OK(Fail(Life("a"), begin_epoch(), 0));
  EXPECT_FALSE(differ(begin_epoch(), 1));
  ASSERT_OK(Fail(Life("a"), begin_epoch(), 0));
  const int64_t epoch = begin_epoch();
  ASSERT_OK(StepDone(Life("a"), epoch, 0, 1));
  ASSERT_OK(StepDone(Life("b"), epoch, 1, 1));
  EXPECT_TRUE(differ(epoch, 2));
}

TEST_F(CoordinatorTest, ReportsThatTravelTogetherCountEachWhereverTheyAreCut) {
  StartTwoRanks();
  ASSERT_OK(StepDone(Life("a"), 1, 0, /*step=*/3, /*hash=*/30, /*earlier=*/{10, 20}));
  ASSERT_OK(StepDone(Life("b"), 1, 1, 2, 20, {10}));
  ASSERT_OK(StepDone(Life("b"), 1, 1, 4, 40, {30}));
  Pass(absl::Seconds(1), {Life("a"), Life("b")});
  EXPECT_EQ(Job().committed_step, Step(3));
  ASSERT_OK(StepDone(Life("a"), 1, 0, 6, 60, {41, 50}));
  EXPECT_EQ(Count<OrderMismatch>(), 2);
  EXPECT_THAT(std::get<OrderMismatch>(effects_.commands[0].command).message,
              HasSubstr("different operations in step 4"));
}

TEST_F(CoordinatorTest, RollbackLeavesTheStateAndATickTriesAgain) {
  StartTwoRanks();
  Effects refused;
  ASSERT_OK(core_.ReportFailure(Life("a"), {kJob, generation_, Epoch(1), Rank(0), "test"}, now_,
                                &refused));
  EXPECT_FALSE(refused.records.empty());
  core_.Rollback();
  EXPECT_EQ(Job().status.epoch, Epoch(1));
  Pass(absl::Seconds(1), {Life("a"), Life("b")});
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_EQ(Count<PrepareEpoch>(), 2);
}

TEST_F(CoordinatorTest, ChangeThatWaitsForTheJournalIsRolledBackAfterAMove) {
  Effects refused;
  ASSERT_OK(core_.CreateJob({"r1", kJob, Spec(1)}, now_, &refused));
  Coordinator moved = std::move(core_);
  moved.Rollback();
  EXPECT_THAT(moved.GetJob(kJob), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no job")));
  core_ = std::move(moved);
  ASSERT_OK(Create("r1", 1));
  EXPECT_EQ(Job().status.state, JobState::kWaiting);
}

TEST_F(CoordinatorTest, NothingIsReleasedWhileAMismatchWaitsForTheJournal) {
  StartTwoRanks();
  OrderAnnouncement event{kJob,    generation_,  Epoch(1),
                          Rank(0), {Step(1), 0}, {"unshard", UnitId(0)}};
  Effects effects;
  ASSERT_OK(core_.Announce(Life("a"), event, now_, &effects));
  core_.Accept();
  event.rank = Rank(1);
  event.entry.operation = "reduce";
  ASSERT_OK(core_.Announce(Life("b"), event, now_, &effects));
  core_.Rollback();
  event.entry.operation = "unshard";
  ASSERT_OK(Run([&](Effects* e) { return core_.Announce(Life("b"), event, now_, e); }));
  EXPECT_EQ(Count<OrderRelease>(), 0);
  EXPECT_EQ(Count<OrderMismatch>(), 2);
  EXPECT_EQ(Job().status.epoch, Epoch(2));
}

TEST_F(CoordinatorTest, RetriedCreateGetsTheFirstReplyAlsoAfterARestart) {
  ASSERT_OK_AND_ASSIGN(const JobView first, Create("r1", 1));
  ASSERT_OK(Register("a", 1));
  Restart();
  ASSERT_OK_AND_ASSIGN(const JobView again, Create("r1", 1));
  EXPECT_THAT(effects_.records, IsEmpty());
  EXPECT_EQ(again.status.state, first.status.state);
  EXPECT_EQ(again.status.epoch, first.status.epoch);
  ASSERT_OK_AND_ASSIGN(const JobView other, Create("r2", 1));
  EXPECT_EQ(other.status.state, JobState::kStarting);
}

TEST_F(CoordinatorTest, LateRetryOfACreateIsNotGivenALaterJobOfThatName) {
  ASSERT_OK(Create("r1", 1));
  ASSERT_OK(Run([&](Effects* e) { return core_.DeleteJob({"d1", kJob}, now_, e); }));
  EXPECT_THAT(Create("r1", 1), StatusIs(absl::StatusCode::kNotFound, HasSubstr("deleted since")));
  ASSERT_OK(Create("r2", 1));
  const Generation later = Job().generation;
  Restart();
  EXPECT_THAT(Create("r1", 1), StatusIs(absl::StatusCode::kNotFound, HasSubstr("deleted since")));
  EXPECT_EQ(Job().generation, later);
  ASSERT_OK(Create("r2", 1));
}

TEST_F(CoordinatorTest, RequestIdOfAnotherRequestIsRefused) {
  ASSERT_OK(Create("r1", 1));
  const auto create_other = [&](Effects* e) {
    return core_.CreateJob({"r1", JobId("other"), Spec(1)}, now_, e);
  };
  EXPECT_THAT(Run(create_other), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'gpt'")));
  const auto remove = [&](Effects* e) { return core_.DeleteJob({"r1", kJob}, now_, e); };
  EXPECT_THAT(Run(remove), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("create")));
}

TEST_F(CoordinatorTest, RanksThatDisagreeOnTheModelLearnWhoTheyAre) {
  ASSERT_OK(Create("r1", 1));
  const auto create = [&](Effects* e) {
    return core_.CreateJob({"r2", kJob, Spec(1, 3, 9)}, now_, e);
  };
  const auto result = Run(create);
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0")));
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 3")));
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("w")));
}

TEST_F(CoordinatorTest, RecreatedJobHasNothingToDoWithTheDeletedOne) {
  StartTwoRanks();
  const Generation old = generation_;
  ASSERT_OK(Run([&](Effects* e) { return core_.DeleteJob({"d1", kJob}, now_, e); }));
  EXPECT_EQ(Count<DropJob>(), 2);
  EXPECT_THAT(core_.GetJob(kJob), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
  Restart();
  ASSERT_OK(Create("r2", 2));
  EXPECT_GT(generation_, old);
  EXPECT_EQ(Job().committed_step, Step(0));
  Restart();
  EXPECT_EQ(Job().generation, generation_);
  // "b" was away all the time. It reports what it did with the old job and learns that it is gone.
  ASSERT_OK(Beat(Life("b"), {{kJob, old, Epoch(1), {}}}));
  ASSERT_EQ(Count<DropJob>(), 1);
  EXPECT_EQ(std::get<DropJob>(effects_.commands[0].command).generation, old);
  const Generation current = std::exchange(generation_, old);
  ASSERT_OK(Prepared(Life("a"), 1, 5));
  ASSERT_OK(Prepared(Life("b"), 1, 5));
  EXPECT_EQ(Job().status.state, JobState::kStarting) << "answers of the old one do not count";
  ASSERT_OK(Fail(Life("a"), 1, 0));
  ASSERT_OK(StepDone(Life("a"), 1, 0, 6));
  EXPECT_EQ(Job().status.epoch, Epoch(1));
  generation_ = current;
  ASSERT_OK(Prepared(Life("a"), 1));
  ASSERT_OK(Prepared(Life("b"), 1));
  EXPECT_EQ(Job().status.state, JobState::kRunning);
  EXPECT_EQ(Job().status.resume_step, Step(0));
}

TEST_F(CoordinatorTest, NoJobEverHasTheNumberOfAnother) {
  std::set<Generation> seen;
  CoordinatorOptions small = Spread();
  small.request_capacity = 1;
  core_ = Coordinator(small);
  for (int i = 0; i < 4; ++i) {
    ASSERT_OK(Create(absl::StrCat("r", i), 1));
    EXPECT_TRUE(seen.insert(generation_).second);
    ASSERT_OK(Run([&](Effects* e) {
      return core_.DeleteJob({absl::StrCat("d", i), kJob}, now_, e);
    }));
  }
  now_ += absl::Seconds(1);
  core_ = Coordinator(small);  // The journal was lost.
  ASSERT_OK(Create("r0", 1));
  EXPECT_TRUE(seen.insert(generation_).second);
}

TEST_F(CoordinatorTest, DevicesOfADeletedJobGoToTheOneThatWaits) {
  StartTwoRanks();
  const JobId next("next");
  ASSERT_OK(Run([&](Effects* e) { return core_.CreateJob({"r2", next, Spec(2)}, now_, e); }));
  EXPECT_EQ(core_.GetJob(next)->status.state, JobState::kWaiting);
  ASSERT_OK(Run([&](Effects* e) { return core_.DeleteJob({"d1", kJob}, now_, e); }));
  EXPECT_EQ(core_.GetJob(next)->status.state, JobState::kStarting);
}

TEST_F(CoordinatorTest, UntrustedEventsAreRefusedByName) {
  StartTwoRanks();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(StepDone(Life("a"), 1, 2, 1), StatusIs(kInvalid, HasSubstr("no rank 2")));
  EXPECT_THAT(StepDone(Life("a"), 1, -1, 1), StatusIs(kInvalid, HasSubstr("no rank -1")));
  EXPECT_THAT(StepDone(Life("a"), 1, 1, 1), StatusIs(kInvalid, HasSubstr("not on 'a'")));
  OrderAnnouncement event{kJob, generation_, Epoch(1), Rank(0), {Step(1), 0}, {"unshard"}};
  event.entry.unit = UnitId(1);
  const auto announce = [&](Effects* e) { return core_.Announce(Life("a"), event, now_, e); };
  EXPECT_THAT(Run(announce), StatusIs(kInvalid, HasSubstr("no unit 1")));
  event.entry.unit = UnitId(0);
  event.position.sequence = kMaxSequence;
  EXPECT_THAT(Run(announce), StatusIs(kInvalid, HasSubstr("position 1048576")));
}

TEST_F(CoordinatorTest, RecordsThatDoNotBelongTogetherAreDataLoss) {
  EXPECT_THAT(Coordinator::Restore({}, {JobStepRecord{kJob, Step(1)}}, now_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'gpt' has no spec")));
  JobStatus status;
  status.state = JobState::kRunning;
  EXPECT_THAT(Coordinator::Restore(
                  {}, {JobSpecRecord{kJob, Spec(2), {}}, JobStatusRecord{kJob, status}}, now_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("0 placements")));
}

}  // namespace
}  // namespace tessera::coordinator
