// Requested saves, and what is known of all saves, in the coordinator's core.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const JobId kJob("gpt");
const Sender kWorker = {WorkerId("w"), Incarnation(1)};
constexpr int kWorldSize = 2;

class CoordinatorSavesTest : public ::testing::Test {
 protected:
  template <typename Call>
  auto Run(Call call) {
    effects_ = {};
    auto result = call(&effects_);
    core_.Accept();
    for (const StateRecord& record : effects_.records) records_.push_back(record);
    return result;
  }
  void SetUp() override {
    Member member;
    member.incarnation = Incarnation(1);
    member.num_devices = kWorldSize;
    ASSERT_OK(
        Run([&](Effects* e) { return core_.RegisterWorker(kWorker.worker, member, now_, e); }));
    JobConfig config;
    config.world_size = kWorldSize;
    ModelSpec model;
    model.units = {{"root", {TensorSpec{"w", {8, 4}, DType::kFp32, true, ""}}}};
    ASSERT_OK_AND_ASSIGN(const JobSpecPtr spec, MakeJobSpec(model, config, 0));
    ASSERT_OK_AND_ASSIGN(const JobView view, Run([&](Effects* e) {
                           return core_.CreateJob({"r", kJob, spec}, now_, e);
                         }));
    generation_ = view.generation;
    Prepare(1);
  }
  void Prepare(int64_t epoch) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportPrepared(kWorker, {kJob, generation_, Epoch(epoch), Step(0), {}, ""}, now_,
                                  e);
    }));
    ASSERT_EQ(core_.GetJob(kJob)->status.state, JobState::kRunning);
  }
  void Beat(bool attached) {
    RankStatus status;
    status.attached = attached;
    const std::vector<JobProgress> beat = {
        {kJob, generation_, Epoch(1), {{0, status}, {1, status}}}};
    ASSERT_OK(Run([&](Effects* e) { return core_.Heartbeat(kWorker, beat, now_, e); }));
  }
  void FailEpoch(int64_t epoch) {
    ASSERT_OK(Run([&](Effects* e) {
      return core_.ReportFailure(kWorker, {kJob, generation_, Epoch(epoch), Rank(0), "died"}, now_,
                                 e);
    }));
  }
  absl::StatusOr<SaveView> Request(const std::string& id, const std::string& path,
                                   absl::Duration expires_in = absl::InfiniteDuration()) {
    RequestSaveEvent event = {id, kJob, {}, expires_in};
    event.spec.path = path;
    return Run([&](Effects* e) { return core_.RequestSave(event, now_, e); });
  }
  absl::StatusOr<SaveView> Cancel(int64_t number) {
    return Run([&](Effects* e) { return core_.CancelSave(kJob, number, now_, e); });
  }
  SaveReport Report(SaveReport::Phase phase, int64_t epoch, int64_t ordinal, int64_t number,
                    const std::string& path, int rank = 0) const {
    SaveReport report;
    report.job = kJob;
    report.generation = generation_;
    report.epoch = Epoch(epoch);
    report.rank = Rank(rank);
    report.ordinal = ordinal;
    report.number = number;
    report.spec.path = path;
    report.phase = phase;
    report.step = Step(7);
    report.size_bytes = 100;
    return report;
  }
  absl::Status Tell(const SaveReport& report) {
    return Run([&](Effects* e) { return core_.ReportSave(kWorker, report, now_, e); });
  }
  absl::Status Begun(int64_t epoch, int64_t number) {
    return Tell(Report(SaveReport::Phase::kBegun, epoch, 1, number, "/c"));
  }
  void Tick() {
    Run([&](Effects* e) {
      core_.Tick(now_, e);
      return 0;
    });
  }
  void Restart() { ASSERT_OK_AND_ASSIGN(core_, Coordinator::Restore({}, records_, now_)); }
  Save Get(int64_t number) {
    const auto view = core_.GetSave(kJob, number);
    EXPECT_OK(view);
    return view.ok() ? view->save : Save();
  }
  // The save that the last event told the worker to make; -1: none.
  WantSave Wanted() const {
    WantSave wanted;
    wanted.number = -1;
    for (const Outgoing& outgoing : effects_.commands) {
      if (const auto* want = std::get_if<WantSave>(&outgoing.command)) wanted = *want;
    }
    return wanted;
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  Coordinator core_{CoordinatorOptions()};
  std::vector<StateRecord> records_;
  Effects effects_;
  Generation generation_;
};

TEST_F(CoordinatorSavesTest, RequestsAreWantedOneAfterTheOtherAndEndAsTheRanksSay) {
  Beat(/*attached=*/true);
  ASSERT_OK_AND_ASSIGN(const SaveView first, Request("a", "/a"));
  EXPECT_EQ(Wanted().number, 1);
  EXPECT_EQ(Wanted().spec.path, "/a");
  ASSERT_OK_AND_ASSIGN(const SaveView second, Request("b", "/b"));
  EXPECT_EQ(Wanted().number, 1);
  EXPECT_THAT(second.waits_for, HasSubstr("save 1"));
  EXPECT_EQ(first.waits_for, "the next step");
  SaveReport progress = Report(SaveReport::Phase::kBegun, 1, 1, 1, "/a");
  progress.all_bytes = 50;
  ASSERT_OK(Tell(progress));
  progress.rank = Rank(1);
  progress.phase = SaveReport::Phase::kWriting;
  progress.written_bytes = 20;
  ASSERT_OK(Tell(progress));
  ASSERT_OK_AND_ASSIGN(const SaveView saving, core_.GetSave(kJob, 1));
  EXPECT_EQ(saving.save.state, SaveState::kSaving);
  EXPECT_EQ(saving.written_bytes, 20);
  EXPECT_EQ(saving.all_bytes, 100);
  ASSERT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, 1, 1, "/a")));
  EXPECT_EQ(Wanted().number, 2);
  EXPECT_OK(Get(1).outcome);
  EXPECT_EQ(Get(1).step, Step(7));
  EXPECT_EQ(Get(1).fate, SaveFate::kKept);
  SaveReport failed = Report(SaveReport::Phase::kEnded, 1, 2, 2, "/b");
  failed.outcome = absl::PermissionDeniedError("save on rank 1: no");
  ASSERT_OK(Tell(failed));
  EXPECT_EQ(Wanted().number, 0);
  EXPECT_THAT(Get(2).outcome, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("rank 1")));
}

TEST_F(CoordinatorSavesTest, NumbersGoOnBeyondThoseThatWorkersMayHaveHeard) {
  ASSERT_OK_AND_ASSIGN(const SaveView first, Request("a", "/c/1"));
  EXPECT_EQ(first.save.number, 1);
  const auto take_over = [&](int64_t first_number) {
    return Run([&](Effects* e) {
      core_.TakeOverHeld(now_, first_number, e);
      return absl::OkStatus();
    });
  };
  ASSERT_OK(take_over(1000));
  for (const int64_t number : {1000, 1001, 1002}) {
    Restart();
    ASSERT_OK_AND_ASSIGN(const SaveView next, Request(absl::StrCat("b", number), "/c/2"));
    EXPECT_EQ(next.save.number, number);
    ASSERT_OK(take_over(900)) << "after the clock was set back";
  }
}

TEST_F(CoordinatorSavesTest, RequestIdIsUsedOnceAlsoAfterARestart) {
  ASSERT_OK(Request("a", "/a"));
  Restart();
  ASSERT_OK_AND_ASSIGN(const SaveView again, Request("a", "/a"));
  EXPECT_EQ(again.save.number, 1);
  EXPECT_THAT(Request("a", "/other"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("save 1 to '/a'")));
}

TEST_F(CoordinatorSavesTest, RequestSurvivesARestartAndGoesToEachWorkerThatConnects) {
  ASSERT_OK(Request("a", "/a"));
  Restart();
  ASSERT_OK(Run([&](Effects* e) { return core_.Connect(kWorker, now_, e); }));
  EXPECT_EQ(Wanted().number, 1);
  EXPECT_EQ(Wanted().spec.path, "/a");
  ASSERT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, 1, 1, "/a")));
  Restart();
  EXPECT_EQ(Get(1).state, SaveState::kEnded);
  EXPECT_OK(Get(1).outcome);
}

TEST_F(CoordinatorSavesTest, EpochThatEndsIsATryAndTheThirdEndsTheSave) {
  ASSERT_OK(Request("a", "/a"));
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    ASSERT_OK(Begun(epoch, 1));
    EXPECT_EQ(Get(1).state, SaveState::kSaving);
    FailEpoch(epoch);
    EXPECT_EQ(Get(1).tries, epoch);
    now_ += absl::Minutes(1);  // Starts are delayed.
    Prepare(epoch + 1);
    EXPECT_EQ(Wanted().number, epoch < 3 ? 1 : 0) << "with the epoch's start";
  }
  EXPECT_THAT(Get(1).outcome,
              StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("3 tries"), HasSubstr("died"))));
}

TEST_F(CoordinatorSavesTest, EpochThatEndsBeforeItIsBegunIsNoTry) {
  ASSERT_OK(Request("a", "/a"));
  FailEpoch(1);
  EXPECT_EQ(Get(1).tries, 0);
  EXPECT_EQ(Get(1).state, SaveState::kWaiting);
}

TEST_F(CoordinatorSavesTest, OneThatWaitsIsWithdrawnAtOnceAndOneUnderWayAsTheRanksSay) {
  ASSERT_OK(Request("a", "/a"));
  ASSERT_OK_AND_ASSIGN(const SaveView withdrawn, Cancel(1));
  EXPECT_THAT(withdrawn.save.outcome, StatusIs(absl::StatusCode::kCancelled, testing::_));
  EXPECT_EQ(Wanted().number, 0);
  ASSERT_OK(Request("b", "/b"));
  ASSERT_OK(Begun(1, 2));
  ASSERT_OK_AND_ASSIGN(const SaveView under_way, Cancel(2));
  EXPECT_EQ(under_way.save.state, SaveState::kSaving);
  EXPECT_EQ(Wanted().number, 2);
  EXPECT_TRUE(Wanted().cancelled);
  SaveReport end = Report(SaveReport::Phase::kEnded, 1, 1, 2, "/b");
  end.outcome = absl::CancelledError("save on rank 0: the save was cancelled");
  ASSERT_OK(Tell(end));
  EXPECT_THAT(Get(2).outcome, StatusIs(absl::StatusCode::kCancelled, testing::_));
  EXPECT_THAT(Cancel(3), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no save 3")));
}

TEST_F(CoordinatorSavesTest, OneThatWasMadeAlthoughItWasWithdrawnIsSaidToBeThere) {
  ASSERT_OK(Request("a", "/a"));
  ASSERT_OK(Cancel(1));
  ASSERT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, 1, 1, "/a")));
  EXPECT_OK(Get(1).outcome);
  EXPECT_EQ(Get(1).fate, SaveFate::kKept);
}

TEST_F(CoordinatorSavesTest, OneThatNoStepTookInTimeIsWithdrawnAndSaysWhatItWaitedFor) {
  Beat(/*attached=*/false);
  ASSERT_OK_AND_ASSIGN(const SaveView view, Request("a", "/a", absl::Seconds(3)));
  EXPECT_EQ(view.waits_for, "trainers: none is attached to ranks 0, 1");
  now_ += absl::Seconds(2);
  Tick();
  EXPECT_EQ(Get(1).state, SaveState::kWaiting);
  now_ += absl::Seconds(1);
  Tick();
  EXPECT_THAT(Get(1).outcome,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ranks 0, 1")));
}

TEST_F(CoordinatorSavesTest, TrainersOwnSavesAreKnownOnceEachAlsoAfterARestart) {
  ASSERT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, 1, 0, "/s1")));
  ASSERT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, 1, 0, "/s1", 1)));
  SaveReport second = Report(SaveReport::Phase::kEnded, 1, 2, 0, "/s2");
  second.removed = {"/s1"};
  ASSERT_OK(Tell(second));
  Restart();
  ASSERT_OK(Tell(second)) << "a worker tells again what it told";
  ASSERT_OK_AND_ASSIGN(const std::vector<SaveView> saves, core_.ListSaves(kJob));
  ASSERT_EQ(saves.size(), 2);
  EXPECT_EQ(saves[0].save.spec.path, "/s2");
  EXPECT_EQ(saves[0].save.fate, SaveFate::kKept);
  EXPECT_EQ(saves[1].save.fate, SaveFate::kRemoved);
}

TEST_F(CoordinatorSavesTest, RankThatKnowsHowASaveEndedIsBelievedBeforeOneThatDied) {
  SaveReport died = Report(SaveReport::Phase::kEnded, 1, 1, 0, "/s1");
  died.outcome = absl::AbortedError("the executor of rank 0 ended");
  ASSERT_OK(Tell(died));
  EXPECT_EQ(Get(1).fate, SaveFate::kNone);
  ASSERT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, 1, 0, "/s1", 1)));
  EXPECT_OK(Get(1).outcome);
  EXPECT_EQ(core_.ListSaves(kJob)->size(), 1);
}

TEST_F(CoordinatorSavesTest, EndThatCannotBeJournalledIsNotedByALaterTick) {
  Effects refused;
  ASSERT_OK(
      core_.ReportSave(kWorker, Report(SaveReport::Phase::kEnded, 1, 1, 0, "/s1"), now_, &refused));
  core_.Rollback();
  EXPECT_EQ(core_.ListSaves(kJob)->size(), 0);
  Tick();
  EXPECT_EQ(core_.ListSaves(kJob)->size(), 1);
  Tick();
  EXPECT_EQ(core_.ListSaves(kJob)->size(), 1);
}

TEST_F(CoordinatorSavesTest, TooManyThatWaitAreRefused) {
  for (int i = 0; i < SaveLog::kMaxPending; ++i) ASSERT_OK(Request(absl::StrCat("r", i), "/a"));
  EXPECT_THAT(Request("one more", "/a"), StatusIs(absl::StatusCode::kResourceExhausted,
                                                  HasSubstr("waits for a report of rank 0")));
}

TEST_F(CoordinatorSavesTest, NewestAreKeptAndTheRestForgotten) {
  constexpr int kSaves = SaveLog::kMaxEnded + 3;
  for (int i = 1; i <= kSaves; ++i)
    ASSERT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, i, 0, absl::StrCat("/s", i))));
  Restart();
  ASSERT_OK_AND_ASSIGN(const std::vector<SaveView> saves, core_.ListSaves(kJob));
  ASSERT_EQ(saves.size(), SaveLog::kMaxEnded);
  EXPECT_EQ(saves.front().save.spec.path, absl::StrCat("/s", kSaves));
  EXPECT_EQ(saves.back().save.spec.path, "/s4");
}

TEST_F(CoordinatorSavesTest, DeletedJobHasNoneAndReportsOfItAreIgnored) {
  ASSERT_OK(Request("a", "/a"));
  ASSERT_OK(Run([&](Effects* e) { return core_.DeleteJob({"d", kJob}, now_, e); }));
  EXPECT_THAT(core_.GetSave(kJob, 1), StatusIs(absl::StatusCode::kNotFound, testing::_));
  EXPECT_OK(Tell(Report(SaveReport::Phase::kEnded, 1, 1, 1, "/a")));
  EXPECT_THAT(core_.ListSaves(kJob), StatusIs(absl::StatusCode::kNotFound, testing::_));
}

}  // namespace
}  // namespace tessera::coordinator
