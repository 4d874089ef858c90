// Which of two jobs may take the next step, whatever ends and restarts.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const JobId kOld("old"), kNew("new");
constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;

JobSpecPtr Spec(int32_t world_size) {
  JobConfig config;
  config.world_size = world_size;
  ModelSpec model;
  model.units = {{"root", {TensorSpec{"w", {8, 4}, DType::kFp32, true, ""}}}};
  return *MakeJobSpec(model, config, 0);
}

class CoordinatorHandOverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Member member;
    member.incarnation = Incarnation(1);
    member.num_devices = 8;
    ASSERT_OK(
        Run([&](Effects* e) { return core_.RegisterWorker(worker_.worker, member, now_, e); }));
    Create(kOld, 2);
    // Two steps, of both ranks.
    for (int64_t rank : {0, 1}) {
      ASSERT_OK(Run([&](Effects* e) {
        return core_.ReportStep(
            worker_, {kOld, View(kOld).generation, Epoch(1), Rank(rank), Step(2), 1, {1}}, now_, e);
      }));
    }
  }

  template <typename Call>
  absl::Status Run(Call call) {
    effects_ = {};
    const absl::Status status = call(&effects_);
    if (!status.ok()) {
      core_.Rollback();
      return status;
    }
    core_.Accept();
    for (const StateRecord& record : effects_.records) records_.push_back(record);
    return status;
  }
  JobView View(const JobId& job) { return *core_.GetJob(job); }
  HandOverPhase Phase() { return View(kOld).hand_over->phase; }
  void Create(const JobId& job, int32_t world_size) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_
          .CreateJob({absl::StrCat("make ", job.value(), ++requests_), job, Spec(world_size)}, now_,
                     e)
          .status();
    }));
    Begin(job, 0);
  }
  // The worker prepares the job's epoch, which then runs.
  void Begin(const JobId& job, int64_t decided) {
    const JobView view = View(job);
    ASSERT_EQ(view.status.state, JobState::kStarting) << view.status.reason;
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportPrepared(
          worker_, {job, view.generation, view.status.epoch, Step(decided), {}, ""}, now_, e);
    }));
    for (int i = 0; i < 30 && View(job).status.state != JobState::kRunning; ++i) Pass();
    ASSERT_EQ(View(job).status.state, JobState::kRunning);
  }
  void Pass(absl::Duration time = absl::Seconds(1)) {
    now_ += time;
    ASSERT_OK(Run([&](Effects* e) { return core_.Heartbeat(worker_, {}, now_, e); }));
    Run([&](Effects* e) {
      core_.Tick(now_, e);
      return absl::OkStatus();
    }).IgnoreError();
  }
  HandOverOffer Offered(int64_t rank, int64_t step = 2) {
    const JobView view = View(kOld);
    return {kOld,
            view.generation,
            view.status.epoch,
            Rank(rank),
            Step(step),
            absl::StrCat("state ", rank),
            absl::Minutes(1),
            ++requests_};
  }
  absl::Status Offer(const HandOverOffer& offer) {
    return Run([&](Effects* e) { return core_.OfferHandOver(offer, now_, e); });
  }
  // Both ranks, and the epoch that follows.
  void OfferAll() {
    const HandOverOffer first = Offered(0), second = Offered(1);
    ASSERT_OK(Offer(first));
    ASSERT_OK(Offer(second));
    Begin(kOld, 2);
  }
  absl::Status Take(int64_t rank, bool finish, const JobId& taker = kNew) {
    const JobView by = View(taker), old = View(kOld);
    return Run([&](Effects* e) {
      return core_.TakeOverJob({kOld, old.generation, old.hand_over->number, taker, by.generation,
                                by.status.epoch, Rank(rank), finish},
                               now_, e);
    });
  }
  void AcceptAll() {
    for (int64_t rank : {0, 1, 2}) ASSERT_OK(Take(rank, false));
    ASSERT_EQ(Phase(), HandOverPhase::kAccepted);
  }
  absl::Status Cancel() {
    return Run([&](Effects* e) { return core_.CancelHandOver(kOld, "a test", now_, e); });
  }
  void Delete(const JobId& job) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.DeleteJob({absl::StrCat("delete", ++requests_), job}, now_, e);
    }));
  }
  void Restart() {
    ASSERT_OK_AND_ASSIGN(core_, Coordinator::Restore({}, records_, now_));
    ASSERT_OK(Run([&](Effects* e) { return core_.Connect(worker_, now_, e); }));
  }
  // Of the last StartEpoch; -1: none was sent.
  int Frozen() {
    int frozen = -1;
    for (const Outgoing& o : effects_.commands) {
      if (const auto* start = std::get_if<StartEpoch>(&o.command)) frozen = start->frozen;
    }
    return frozen;
  }
  bool IsDropped(const JobId& job) {
    for (const Outgoing& o : effects_.commands) {
      const auto* drop = std::get_if<DropJob>(&o.command);
      if (drop != nullptr && drop->job == job) return true;
    }
    return false;
  }

  const Sender worker_ = {WorkerId("w"), Incarnation(1)};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  Coordinator core_{CoordinatorOptions()};
  Effects effects_;
  std::vector<StateRecord> records_;
  int64_t requests_ = 0;
};

TEST_F(CoordinatorHandOverTest, JobIsFrozenOnceAllRanksOfferedOneStep) {
  const HandOverOffer first = Offered(0), second = Offered(1);
  ASSERT_OK(Offer(first));
  EXPECT_FALSE(View(kOld).hand_over.has_value());
  EXPECT_THAT(Offer(Offered(1, 3)),
              StatusIs(kRefused, AllOf(HasSubstr("rank 0 hands it over at step 2"),
                                       HasSubstr("rank 1 at step 3"))));
  ASSERT_OK(Offer(second));
  EXPECT_EQ(Phase(), HandOverPhase::kOffered);
  EXPECT_EQ(View(kOld).status.state, JobState::kStarting);
  Begin(kOld, 2);
  EXPECT_EQ(Frozen(), 1);
  EXPECT_THAT(*View(kOld).hand_over->trainer_states, ElementsAre("state 0", "state 1"));
  EXPECT_THAT(View(kOld).status.reason, HasSubstr("waits for a job that takes it over"));
  ASSERT_OK(Offer(second)) << "a repeat";
  EXPECT_EQ(View(kOld).status.epoch, Epoch(2));
}

TEST_F(CoordinatorHandOverTest, IsCancelledWhereStepsWereDecidedBeforeItsWorkersWereReached) {
  const HandOverOffer first = Offered(0), second = Offered(1);
  ASSERT_OK(Offer(first));
  ASSERT_OK(Offer(second));
  Create(kNew, 3);
  EXPECT_THAT(Take(0, false), StatusIs(absl::StatusCode::kAborted, HasSubstr("has not begun")));
  Begin(kOld, 4);  // The worker was disconnected, and its trainers had continued.
  EXPECT_EQ(Frozen(), 0);
  EXPECT_EQ(Phase(), HandOverPhase::kCancelled);
  EXPECT_THAT(View(kOld).hand_over->reason, HasSubstr("step 4 is decided"));
  EXPECT_THAT(Take(0, false), StatusIs(kRefused, HasSubstr("is cancelled")));
}

TEST_F(CoordinatorHandOverTest, OfferThatIsWithdrawnOrOfAnEndedEpochDoesNotCount) {
  const HandOverOffer first = Offered(0), again = Offered(0), second = Offered(1);
  ASSERT_OK(Offer(first));
  ASSERT_OK(Offer(again));
  core_.WithdrawOffer(first);  // The later offer stays.
  core_.WithdrawOffer(again);
  ASSERT_OK(Offer(second));
  EXPECT_FALSE(View(kOld).hand_over.has_value());
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(worker_, {kOld, View(kOld).generation, Epoch(1), Rank(0), "died"},
                               now_, e);
  }));
  EXPECT_THAT(Offer(again),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch 1 is not current")));
  Begin(kOld, 2);
  EXPECT_EQ(Frozen(), 0);
}

TEST_F(CoordinatorHandOverTest, FailuresAndRestartsLeaveItFrozenUntilItEnds) {
  OfferAll();
  for (int64_t epoch : {2, 3}) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportFailure(
          worker_, {kOld, View(kOld).generation, Epoch(epoch), Rank(1), "died"}, now_, e);
    }));
    Begin(kOld, 2);
    EXPECT_EQ(Phase(), HandOverPhase::kOffered);
    Restart();
    EXPECT_EQ(Frozen(), 1) << "as it is told again";
    EXPECT_THAT(*View(kOld).hand_over->trainer_states, ElementsAre("state 0", "state 1"));
  }
  ASSERT_OK(Cancel());
  Begin(kOld, 2);
  EXPECT_EQ(Frozen(), 0);
  Restart();
  EXPECT_EQ(Frozen(), 0);
  EXPECT_EQ(Phase(), HandOverPhase::kCancelled);
  const Epoch epoch = View(kOld).status.epoch;
  ASSERT_OK(Cancel()) << "as it is told again where the first answer was lost";
  EXPECT_EQ(View(kOld).status.epoch, epoch);
  EXPECT_EQ(Phase(), HandOverPhase::kCancelled);
}

TEST_F(CoordinatorHandOverTest, GoesOnWhereNobodyTookItOverInTime) {
  OfferAll();
  Pass(absl::Seconds(59));
  EXPECT_EQ(Phase(), HandOverPhase::kOffered);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Phase(), HandOverPhase::kCancelled);
  Begin(kOld, 2);
  EXPECT_EQ(Frozen(), 0);
  OfferAll();  // Again.
  EXPECT_EQ(Phase(), HandOverPhase::kOffered);
}

TEST_F(CoordinatorHandOverTest, TakerOwnsItOnceAllOfItsRanksAreReadyInOneEpoch) {
  OfferAll();
  Create(kNew, 3);
  ASSERT_OK(Take(0, false));
  ASSERT_OK(Take(1, false));
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(worker_, {kNew, View(kNew).generation, Epoch(1), Rank(2), "died"},
                               now_, e);
  }));
  Begin(kNew, 0);
  ASSERT_OK(Take(2, false));
  EXPECT_EQ(Phase(), HandOverPhase::kOffered) << "two of them were of the epoch before";
  EXPECT_THAT(Take(0, true), StatusIs(kRefused, HasSubstr("no job has accepted")));
  AcceptAll();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Cancel(), StatusIs(kRefused, HasSubstr("'new' takes it over already")));
    Pass(absl::Hours(1));
    EXPECT_EQ(Phase(), HandOverPhase::kAccepted) << "however long it takes";
    EXPECT_THAT(Offer(Offered(0, 4)), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr("which has accepted it")));
    ASSERT_OK(Take(0, false)) << "a repeat";
    Restart();
  }
  Create(JobId("late"), 1);
  EXPECT_THAT(Take(0, false, JobId("late")), StatusIs(kRefused, HasSubstr("'new'")));
}

TEST_F(CoordinatorHandOverTest, SaveThatWaitsEndsWithTheOldJobAndNoneIsTakenAfterIt) {
  const auto request = [&](const std::string& id) {
    return Run([&](Effects* e) {
      return core_.RequestSave({id, kOld, {}, absl::Hours(100)}, now_, e).status();
    });
  };
  ASSERT_OK(request("before"));
  OfferAll();
  ASSERT_OK(request("of a frozen job"));
  Create(kNew, 3);
  AcceptAll();
  for (int64_t rank : {0, 1, 2}) ASSERT_OK(Take(rank, true));
  Restart();
  ASSERT_OK_AND_ASSIGN(const std::vector<SaveView> saves, core_.ListSaves(kOld));
  ASSERT_EQ(saves.size(), 2);
  for (const SaveView& view : saves) {
    EXPECT_THAT(view.save.outcome, StatusIs(kRefused, HasSubstr("'new' has taken it over")));
    EXPECT_EQ(view.save.state, SaveState::kEnded);
  }
  EXPECT_THAT(request("after"), StatusIs(kRefused, HasSubstr("job 'old' is over")));
}

TEST_F(CoordinatorHandOverTest, OldJobIsOverOnceAllRanksOfTheTakerHaveIt) {
  const HandOverOffer offer = Offered(1);
  OfferAll();
  Create(kNew, 3);
  AcceptAll();
  ASSERT_OK(Take(0, true));
  ASSERT_OK(Take(1, true));
  EXPECT_EQ(Phase(), HandOverPhase::kAccepted);
  ASSERT_OK(Take(2, true));
  EXPECT_EQ(Phase(), HandOverPhase::kDone);
  EXPECT_TRUE(IsDropped(kOld));
  Restart();
  EXPECT_EQ(View(kOld).status.state, JobState::kHandedOver);
  EXPECT_THAT(View(kOld).status.reason, HasSubstr("job 'new' has taken it over at step 2"));
  EXPECT_EQ(Frozen(), 0) << "of the new one, and of it alone";
  ASSERT_OK(Take(1, true)) << "a repeat";
  ASSERT_OK(Offer(offer)) << "a repeat, which finds how it ended";
  Create(JobId("more"), 5);  // On devices that are free now.
  Delete(kOld);
}

TEST_F(CoordinatorHandOverTest, TakerThatTrainsHasItWithoutAWord) {
  OfferAll();
  Create(kNew, 3);
  AcceptAll();
  for (int64_t rank : {0, 1, 2}) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportStep(
          worker_, {kNew, View(kNew).generation, Epoch(1), Rank(rank), Step(1), 1, {}}, now_, e);
    }));
  }
  Pass();
  EXPECT_EQ(Phase(), HandOverPhase::kDone);
}

TEST_F(CoordinatorHandOverTest, WithItsTakerDeletedItIsOfferedAgain) {
  OfferAll();
  Create(kNew, 3);
  AcceptAll();
  Delete(kNew);
  Create(kNew, 3);  // Another generation of this name.
  Pass();
  EXPECT_EQ(Phase(), HandOverPhase::kOffered);
  Restart();
  AcceptAll();
  Delete(kNew);
  Pass(absl::Hours(1));
  Pass();
  EXPECT_EQ(Phase(), HandOverPhase::kCancelled);
  Begin(kOld, 2);
  EXPECT_EQ(Frozen(), 0);
}

TEST_F(CoordinatorHandOverTest, LargeStatesOfTrainersAreRefusedTogether) {
  HandOverOffer first = Offered(0), second = Offered(1);
  first.trainer_state.resize(kMaxHandOverStatesBytes);
  ASSERT_OK(Offer(first));
  EXPECT_THAT(Offer(second),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("trainers' states")));
  EXPECT_FALSE(View(kOld).hand_over.has_value());
}

}  // namespace
}  // namespace tessera::coordinator
