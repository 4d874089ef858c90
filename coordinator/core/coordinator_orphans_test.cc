// Jobs that workers hold and the coordinator's state does not know.
#include <utility>

#include "base/status_matchers.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

const JobId kJob("gpt");
constexpr Generation kGeneration(70);

CoordinatorOptions Spread() {
  CoordinatorOptions options;
  options.placement = PlacementRule::kSpread;
  return options;
}

class CoordinatorOrphansTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* worker : {"a", "b"}) ASSERT_OK(Register(worker));
  }
  template <typename Call>
  auto Run(Call call) {
    effects_ = {};
    auto result = call(&effects_);
    core_.Accept();
    for (const StateRecord& record : effects_.records) records_.push_back(record);
    return result;
  }
  static Sender Life(const std::string& worker) { return {WorkerId(worker), Incarnation(1)}; }
  absl::Status Register(const std::string& worker) {
    Member member;
    member.incarnation = Incarnation(1);
    member.num_devices = 1;
    return Run([&](Effects* e) { return core_.RegisterWorker(WorkerId(worker), member, now_, e); });
  }
  static JobSpecPtr Spec() {
    JobConfig config;
    config.world_size = 2;
    ModelSpec model;
    model.units = {{"root", {TensorSpec{"w", {8, 4}, DType::kFp32, true, ""}}}};
    return *MakeJobSpec(model, config, 0);
  }
  // Reports that it holds the job, in this epoch.
  absl::Status Beat(const std::string& worker, int64_t epoch, Generation generation = kGeneration) {
    return Run([&](Effects* e) {
      return core_.Heartbeat(Life(worker), {{kJob, generation, Epoch(epoch), {}}}, now_, e);
    });
  }
  HeldJob Held(int64_t epoch, int64_t decided = 12, Generation generation = kGeneration) const {
    HeldJob held;
    held.job = kJob;
    held.generation = generation;
    held.spec = Spec();
    held.epoch = Epoch(epoch);
    held.places = {{WorkerId("a"), 0}, {WorkerId("b"), 0}};
    held.decided_step = Step(decided);
    held.has_begun = true;
    held.owner = owner_;
    return held;
  }
  absl::Status Describe(const std::string& worker, int64_t epoch, int64_t decided = 12,
                        Generation generation = kGeneration) {
    return Run([&](Effects* e) {
      return core_.ReportHeld(Life(worker), Held(epoch, decided, generation), now_, e);
    });
  }
  absl::StatusOr<JobView> Create(const std::string& request) {
    return Run([&](Effects* e) { return core_.CreateJob({request, kJob, Spec()}, now_, e); });
  }
  absl::StatusOr<JobView> CreateWithKey(const std::string& request) {
    CreateJobEvent event{request, kJob, Spec()};
    event.attach_key = "the key";
    return Run([&](Effects* e) { return core_.CreateJob(event, now_, e); });
  }
  absl::Status Delete(const std::string& request) {
    return Run([&](Effects* e) { return core_.DeleteJob({request, kJob}, now_, e); });
  }
  void TakeOver() {
    ASSERT_OK(Run([&](Effects* e) {
      core_.TakeOverHeld(now_ + absl::Seconds(10), 1, e);
      return absl::OkStatus();
    }));
  }
  absl::Status Tick(int seconds) {
    now_ += absl::Seconds(seconds);
    return Run([&](Effects* e) {
      core_.Tick(now_, e);
      return absl::OkStatus();
    });
  }
  template <typename C>
  int Count() const {
    int count = 0;
    for (const Outgoing& o : effects_.commands) count += std::holds_alternative<C>(o.command);
    return count;
  }
  JobView Job() { return *core_.GetJob(kJob); }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Coordinator core_{Spread()};
  Effects effects_;
  std::vector<StateRecord> records_;
  std::string owner_;  // As workers describe it.
};

TEST_F(CoordinatorOrphansTest, KeepsItsOwnerWhereItsWorkersAgree) {
  owner_ = "uid:7";
  ASSERT_OK(Beat("a", 5));
  ASSERT_OK(Describe("a", 5));
  EXPECT_EQ(Job().owner, "uid:7");
  ASSERT_OK(Beat("b", 5));
  ASSERT_OK(Describe("b", 5));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  EXPECT_EQ(Job().owner, "uid:7");
}

TEST_F(CoordinatorOrphansTest, HasNoOwnerWhereOneOfItsWorkersNamesAnother) {
  owner_ = "uid:7";
  ASSERT_OK(Beat("a", 5));
  ASSERT_OK(Describe("a", 5));
  owner_ = "uid:8";
  ASSERT_OK(Beat("b", 6));
  ASSERT_OK(Describe("b", 6));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  EXPECT_EQ(Job().owner, "");
}

TEST_F(CoordinatorOrphansTest, IsKeptAndShownUntilAllItsWorkersHaveDescribedIt) {
  ASSERT_OK(Beat("a", 5));
  EXPECT_EQ(Count<DropJob>(), 0);
  EXPECT_EQ(Count<DescribeJob>(), 1);
  EXPECT_EQ(Job().status.state, JobState::kOrphaned);
  ASSERT_OK(Describe("a", 5));
  EXPECT_EQ(Job().status.state, JobState::kOrphaned);
  EXPECT_EQ(Job().committed_step, Step(12));
  EXPECT_THAT(Job().status.reason, HasSubstr("worker 'a' holds it, and the journal does not know "
                                             "it; it continues once worker 'b' is here too"));
  EXPECT_EQ(core_.ListJobs().size(), 1);
  ASSERT_OK(Beat("a", 5));
  EXPECT_EQ(Count<DescribeJob>(), 0) << "once is enough";

  ASSERT_OK(Beat("b", 4));  // It was disconnected when the others continued.
  ASSERT_OK(Describe("b", 4, 11));
  EXPECT_EQ(Count<PrepareEpoch>(), 2);
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  EXPECT_EQ(Job().status.epoch, Epoch(6)) << "one that no worker has been in";
  EXPECT_EQ(Job().committed_step, Step(12));
  EXPECT_EQ(Job().generation, kGeneration);
  EXPECT_EQ(core_.ListJobs().size(), 1);
}

TEST_F(CoordinatorOrphansTest, StepsOfAWorkerThatAnotherHasReplacedDoNotCount) {
  ASSERT_OK(Register("c"));
  HeldJob before = Held(3, 30);
  before.places = {{WorkerId("a"), 0}, {WorkerId("c"), 0}};
  ASSERT_OK(Beat("c", 3));
  ASSERT_OK(Run([&](Effects* e) { return core_.ReportHeld(Life("c"), before, now_, e); }));
  // It began again without that one, as all that it had done was lost.
  HeldJob now = Held(5, 2);
  for (HeldJob::Place& place : now.places) place.since = Epoch(4);
  for (const char* worker : {"a", "b"}) {
    ASSERT_OK(Beat(worker, 5));
    ASSERT_OK(Run([&](Effects* e) { return core_.ReportHeld(Life(worker), now, now_, e); }));
  }
  EXPECT_EQ(Job().committed_step, Step(2));
  EXPECT_EQ(Job().status.epoch, Epoch(6));
}

TEST_F(CoordinatorOrphansTest, WhatWasTakenOverSurvivesARestart) {
  for (const char* worker : {"a", "b"}) {
    ASSERT_OK(Beat(worker, 5));
    ASSERT_OK(Describe(worker, 5));
  }
  ASSERT_OK_AND_ASSIGN(Coordinator again,
                       Coordinator::Restore(CoordinatorOptions(), records_, now_));
  EXPECT_EQ(again.GetJob(kJob)->committed_step, Step(12));
  EXPECT_EQ(again.GetJob(kJob)->status.epoch, Epoch(6));
}

TEST_F(CoordinatorOrphansTest, OneOfItsNameIsMadeOnlyOnceItIsDeletedWhichDropsIt) {
  ASSERT_OK(Beat("a", 5));
  EXPECT_THAT(Create("r1"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'a' holds it")));
  ASSERT_OK(Delete("r2"));
  EXPECT_EQ(Count<DropJob>(), 1);
  ASSERT_OK(Beat("a", 5));  // It had not heard of that yet.
  EXPECT_EQ(Count<DropJob>(), 1);
  EXPECT_EQ(Count<DescribeJob>(), 0);
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r3"));
  EXPECT_LT(kGeneration, made.generation);
}

TEST_F(CoordinatorOrphansTest, WhatItsWorkerNoLongerListsIsGone) {
  ASSERT_OK(Beat("a", 5));
  ASSERT_OK(Run([&](Effects* e) { return core_.Heartbeat(Life("a"), {}, now_, e); }));
  EXPECT_THAT(core_.GetJob(kJob), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
  EXPECT_OK(Create("r1"));
}

TEST_F(CoordinatorOrphansTest, IsGoneWithAWorkerThatIsSilent) {
  ASSERT_OK(Beat("a", 5));
  for (int i = 0; i < 3; ++i) ASSERT_OK(Tick(4));
  EXPECT_THAT(core_.GetJob(kJob), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
}

TEST_F(CoordinatorOrphansTest, IsGoneWithTheLifeOfItsWorker) {
  ASSERT_OK(Beat("a", 5));
  core_.Disconnected(WorkerId("a"));
  Member next;
  next.incarnation = Incarnation(2);
  next.num_devices = 1;
  ASSERT_OK(Run([&](Effects* e) { return core_.RegisterWorker(WorkerId("a"), next, now_, e); }));
  EXPECT_EQ(Job().status.state, JobState::kOrphaned) << "that process may have ended since";
  ASSERT_OK(Run([&](Effects* e) {
    return core_.Connect({WorkerId("a"), Incarnation(2)}, now_, e);
  }));
  EXPECT_THAT(core_.GetJob(kJob), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
}

TEST_F(CoordinatorOrphansTest, LateDescriptionOfADeletedJobDoesNotBringItBack) {
  for (const char* worker : {"a", "b"}) ASSERT_OK(Beat(worker, 5));
  ASSERT_OK(Describe("a", 5));
  ASSERT_OK(Delete("r1"));
  ASSERT_OK(Describe("b", 5));
  EXPECT_THAT(core_.GetJob(kJob), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
  EXPECT_OK(Create("r2"));
}

TEST_F(CoordinatorOrphansTest, NewJournalOfAClusterMakesNoJobBeforeItsWorkersCouldCome) {
  TakeOver();
  EXPECT_THAT(Create("r1"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the journal is new")));
  for (const int seconds : {4, 9, 4}) ASSERT_OK(Tick(seconds));
  EXPECT_EQ(Create("r1").status().code(), absl::StatusCode::kUnavailable)
      << "nobody could come in the 9 s in which it stood still";
  ASSERT_OK(Tick(2));
  EXPECT_OK(Create("r1"));
}

TEST_F(CoordinatorOrphansTest, OlderJournalPlacesNoJobBeforeTheWorkersThatHoldItCouldCome) {
  ASSERT_OK(Register("c"));
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  ASSERT_EQ(made.status.placements[1].worker, WorkerId("b"));
  TakeOver();
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(Life("b"), {kJob, made.generation, Epoch(1), Rank(-1), "full"}, now_,
                               e);
  }));
  EXPECT_EQ(Job().status.epoch, Epoch(1)) << "a worker may hold a second one";
  ASSERT_OK(Tick(10));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
}

TEST_F(CoordinatorOrphansTest, WorkerWithoutARankKeepsStepsThatTheJournalNeverHad) {
  ASSERT_OK(Register("c"));
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  for (const char* worker : {"a", "b"}) {
    EpochPrepared event{kJob, made.generation, Epoch(1)};
    event.holds_nothing = true;
    ASSERT_OK(Run([&](Effects* e) { return core_.ReportPrepared(Life(worker), event, now_, e); }));
  }
  ASSERT_EQ(Job().status.state, JobState::kRunning);
  RankStatus later;
  later.step = Step(13);
  ASSERT_OK(Run([&](Effects* e) {
    return core_.Heartbeat(Life("c"), {{kJob, made.generation, Epoch(1), {{0, later}}}}, now_, e);
  }));
  EXPECT_EQ(Count<DropJob>(), 0);
}

TEST_F(CoordinatorOrphansTest, DescriptionThatContradictsTheJournalIsRefused) {
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  ASSERT_OK(Beat("a", 8, made.generation));
  HeldJob other;
  other.job = kJob;
  other.generation = made.generation;
  JobConfig config;
  config.world_size = 1;
  ModelSpec model;
  model.units = {{"root", {TensorSpec{"w", {8, 4}, DType::kFp32, true, ""}}}};
  other.spec = *MakeJobSpec(model, config, 0);
  other.epoch = Epoch(8);
  other.places = {{WorkerId("a"), 0}};
  EXPECT_THAT(Run([&](Effects* e) { return core_.ReportHeld(Life("a"), other, now_, e); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world_size differs")));
}

TEST_F(CoordinatorOrphansTest, JobThatThisJournalDeletedIsDroppedAlsoAfterARestart) {
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  ASSERT_OK(Delete("r2"));
  ASSERT_OK_AND_ASSIGN(core_, Coordinator::Restore(CoordinatorOptions(), records_, now_));
  ASSERT_OK(Beat("a", 1, made.generation));
  EXPECT_EQ(Count<DropJob>(), 1);
  EXPECT_EQ(Count<DescribeJob>(), 0);
}

TEST_F(CoordinatorOrphansTest, DeletionIsRememberedWhereAnEarlierOneIsStillToBeDropped) {
  ASSERT_OK(Beat("a", 5));
  ASSERT_OK(Delete("delete the orphan"));
  const auto next = Create("create");
  ASSERT_OK(next);
  ASSERT_OK(Delete("delete"));
  ASSERT_OK(Beat("b", 1, next->generation));
  EXPECT_EQ(Count<DropJob>(), 1);
  EXPECT_THAT(core_.GetJob(kJob).status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
}

TEST_F(CoordinatorOrphansTest, JournalOfAnOlderEpochTakesOverTheLaterOne) {
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  ASSERT_EQ(made.status.epoch, Epoch(1));
  ASSERT_OK(Beat("a", 8, made.generation));
  EXPECT_EQ(Count<DropJob>(), 0);
  EXPECT_THAT(Job().status.reason, HasSubstr("the journal has an older epoch"));
  ASSERT_OK(Describe("a", 8, 40, made.generation));
  // Nothing changes until it knows what the others hold.
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportPrepared(Life("b"), {kJob, made.generation, Epoch(1)}, now_, e);
  }));
  EXPECT_EQ(Job().status.epoch, Epoch(1));
  ASSERT_OK(Beat("b", 8, made.generation));
  ASSERT_OK(Describe("b", 8, 40, made.generation));
  EXPECT_EQ(Job().status.epoch, Epoch(9));
  EXPECT_EQ(Job().committed_step, Step(40));
}

// Any worker may list any job in its heartbeats.
TEST_F(CoordinatorOrphansTest, JobIsNotHeldUpByAWorkerThatNeverHadARankOfIt) {
  ASSERT_OK(Register("stranger"));
  ASSERT_OK_AND_ASSIGN(const JobView made, CreateWithKey("r1"));
  ASSERT_OK(Beat("stranger", 8, made.generation));
  EXPECT_THAT(Job().status.reason, testing::Not(HasSubstr("older epoch")));
  EXPECT_THAT(Describe("stranger", 8, 40, made.generation),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       testing::AllOf(HasSubstr("'stranger'"), HasSubstr("'gpt'"))));
  for (const char* worker : {"a", "b"}) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportPrepared(Life(worker), {kJob, made.generation, Epoch(1)}, now_, e);
    }));
  }
  EXPECT_EQ(Job().status.state, JobState::kRunning);
  // Nor by claims that it repeats, once the job runs.
  ASSERT_OK(Beat("stranger", 1'000, made.generation));
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(Life("a"), {kJob, made.generation, Epoch(1), Rank(0), "died"}, now_,
                               e);
  }));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
}

TEST_F(CoordinatorOrphansTest, WorkerWithTheJobsKeyMayHoldALaterEpochThanTheJournalPlaced) {
  for (const char* worker : {"c", "d"}) ASSERT_OK(Register(worker));
  ASSERT_OK_AND_ASSIGN(const JobView made, CreateWithKey("r1"));
  for (const char* worker : {"c", "d"}) {
    HeldJob held = Held(8, 40, made.generation);
    held.places = {{WorkerId("c"), 0}, {WorkerId("d"), 0}};
    held.attach_key = "the key";
    ASSERT_OK(Beat(worker, 8, made.generation));
    ASSERT_OK(Run([&](Effects* e) { return core_.ReportHeld(Life(worker), held, now_, e); }));
  }
  EXPECT_EQ(Job().status.epoch, Epoch(9));
  EXPECT_EQ(Job().committed_step, Step(40));
  EXPECT_EQ(Job().status.placements[0].worker, WorkerId("c"));
}

TEST_F(CoordinatorOrphansTest, JournalOfBeforeTheFirstEpochBeganTakesThatOver) {
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  ASSERT_EQ(made.status.epoch, Epoch(1));
  RankStatus running;
  running.step = Step(13);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string worker = rank == 0 ? "a" : "b";
    ASSERT_OK(Run([&](Effects* e) {
      return core_.Heartbeat(Life(worker), {{kJob, made.generation, Epoch(1), {{rank, running}}}},
                             now_, e);
    }));
    EXPECT_EQ(Count<DescribeJob>(), 1);
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportFailure(Life(worker),
                                 {kJob, made.generation, Epoch(1), Rank(rank), "died"}, now_, e);
    }));
    EXPECT_EQ(Count<PrepareEpoch>(), 0) << "it would begin with nothing";
    ASSERT_OK(Describe(worker, 1, 12, made.generation));
  }
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_TRUE(Job().status.bound);
  EXPECT_EQ(Job().committed_step, Step(12));
}

TEST_F(CoordinatorOrphansTest, TakeOverThatTheJournalDidNotTakeLeavesItAnOrphan) {
  for (const char* worker : {"a", "b"}) ASSERT_OK(Beat(worker, 5));
  ASSERT_OK(Describe("a", 5));
  ASSERT_OK(core_.ReportHeld(Life("b"), Held(5), now_, &effects_));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  core_.Rollback();
  EXPECT_EQ(Job().status.state, JobState::kOrphaned);
  EXPECT_THAT(Create("r1"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("'a', 'b' hold it")))
      << "its deletion would drop both";
  ASSERT_OK(Beat("b", 5));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
}

TEST_F(CoordinatorOrphansTest, WaitsForTheWorkerOfALaterEpochThatHasNotDescribedIt) {
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  TakeOver();  // Of an older journal, which placed it elsewhere.
  ASSERT_OK(Register("c"));
  ASSERT_OK(Beat("c", 8, made.generation));
  for (const char* worker : {"a", "b"}) {
    ASSERT_OK(Beat(worker, 1, made.generation));
    ASSERT_OK(Describe(worker, 1, 0, made.generation));
  }
  EXPECT_EQ(Job().status.epoch, Epoch(1)) << "what 'c' holds would be given up";
  EXPECT_THAT(Job().status.reason, HasSubstr("worker 'c' is here too"));
}

TEST_F(CoordinatorOrphansTest, IsDescribedAgainInALaterEpoch) {
  for (const char* worker : {"a", "b"}) ASSERT_OK(Beat(worker, 5));
  ASSERT_OK(Describe("a", 5));
  ASSERT_OK(Beat("a", 6));
  EXPECT_EQ(Count<DescribeJob>(), 1);
  ASSERT_OK(Describe("b", 5));
  EXPECT_EQ(Job().status.state, JobState::kOrphaned) << "'a' is further than it said";
  ASSERT_OK(Describe("a", 6, 13));
  EXPECT_EQ(Job().status.epoch, Epoch(7));
  EXPECT_EQ(Job().committed_step, Step(13));
}

TEST_F(CoordinatorOrphansTest, OfOneEpochThatWasTwoTheOneThatBeganIsTakenOver) {
  ASSERT_OK(Register("c"));
  for (const char* worker : {"a", "b", "c"}) ASSERT_OK(Beat(worker, 1));
  HeldJob unbegun = Held(1, 0);
  unbegun.places = {{WorkerId("a"), 0}, {WorkerId("c"), 0}};
  unbegun.has_begun = false;
  for (const char* worker : {"a", "c"}) {
    ASSERT_OK(Run([&](Effects* e) { return core_.ReportHeld(Life(worker), unbegun, now_, e); }));
  }
  EXPECT_EQ(Job().status.state, JobState::kOrphaned) << "'b' may be further";
  ASSERT_OK(Describe("b", 1));
  EXPECT_EQ(Job().committed_step, Step(12));
  EXPECT_EQ(Job().status.placements[1].worker, WorkerId("b"));
}

TEST_F(CoordinatorOrphansTest, IsTakenOverOnceItsDevicesAreFree) {
  ASSERT_OK(Run([&](Effects* e) {
    return core_.CreateJob({"r1", JobId("other"), Spec()}, now_, e).status();
  }));
  for (const char* worker : {"a", "b"}) {
    ASSERT_OK(Beat(worker, 5));
    ASSERT_OK(Describe(worker, 5));
  }
  EXPECT_THAT(Job().status.reason, HasSubstr("has another job"));
  ASSERT_OK(Run([&](Effects* e) { return core_.DeleteJob({"r2", JobId("other")}, now_, e); }));
  ASSERT_OK(Beat("a", 5));
  EXPECT_EQ(Job().status.state, JobState::kStarting);
}

TEST_F(CoordinatorOrphansTest, ItsDevicesGoToNoOtherJob) {
  for (const char* worker : {"a", "b"}) ASSERT_OK(Beat(worker, 5));
  ASSERT_OK(Describe("a", 5));
  const auto other = Run([&](Effects* e) {
    return core_.CreateJob({"r1", JobId("other"), Spec()}, now_, e);
  });
  ASSERT_OK(other);
  EXPECT_EQ(other->status.state, JobState::kWaiting);
}

TEST_F(CoordinatorOrphansTest, WorkerThatLostItsMemoryWithoutEndingIsNoticedAtTheNextEpoch) {
  ASSERT_OK_AND_ASSIGN(const JobView made, Create("r1"));
  const auto prepared = [&](const std::string& worker, int64_t epoch, int64_t decided,
                            bool nothing) {
    EpochPrepared event{kJob, made.generation, Epoch(epoch), Step(decided)};
    event.holds_nothing = nothing;
    return Run([&](Effects* e) { return core_.ReportPrepared(Life(worker), event, now_, e); });
  };
  ASSERT_OK(prepared("a", 1, 0, true));
  ASSERT_OK(prepared("b", 1, 0, true));
  ASSERT_EQ(Job().status.state, JobState::kRunning);
  for (const int64_t rank : {0, 1}) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportStep(Life(rank == 0 ? "a" : "b"),
                              {kJob, made.generation, Epoch(1), Rank(rank), Step(1), 1, {}}, now_,
                              e);
    }));
  }
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(Life("a"), {kJob, made.generation, Epoch(1), Rank(0), "test"}, now_,
                               e);
  }));
  ASSERT_OK(prepared("a", 2, 1, false));
  ASSERT_OK(prepared("b", 2, 0, true));
  EXPECT_EQ(Job().status.state, JobState::kLost);
}

TEST_F(CoordinatorOrphansTest, JobWhoseRecordsCannotBeReadIsTakenOverFromItsWorkers) {
  core_.Quarantine(kJob, "journal record 'job/gpt/status': its value cannot be parsed");
  EXPECT_EQ(Job().status.state, JobState::kOrphaned);
  EXPECT_THAT(Create("r1"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("'job/gpt/status'")));
  for (const char* worker : {"a", "b"}) {
    ASSERT_OK(Beat(worker, 5));
    ASSERT_OK(Describe(worker, 5));
  }
  EXPECT_EQ(Job().status.state, JobState::kStarting);
  ASSERT_OK(Delete("r2"));
  EXPECT_OK(Create("r3"));
}

TEST_F(CoordinatorOrphansTest, JobWhoseRecordsCannotBeReadIsDeleted) {
  core_.Quarantine(kJob, "damaged");
  ASSERT_OK(Delete("r1"));
  EXPECT_THAT(core_.GetJob(kJob), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gpt")));
}

}  // namespace
}  // namespace tessera::coordinator
