// Which ranks hold the others up, as the coordinator's core says it: what workers report, and the
// events, reasons and failures that follow. All times are exact.
#include "coordinator/core/rank_watch.h"

#include <algorithm>
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

const JobId kJob("gpt");

// Rank i of the job is on worker "ni".
class RankWatchTest : public ::testing::Test {
 protected:
  RankWatchTest() { Make({}); }

  void Make(CoordinatorOptions options) {
    options.placement = PlacementRule::kSpread;
    options.worker_timeout = absl::Hours(1000);
    core_ = Coordinator(options);
  }
  template <typename Call>
  auto Run(Call call) {
    effects_ = {};
    auto result = call(&effects_);
    core_.Accept();
    for (ClusterEvent& event : effects_.events) {
      if (event.rank >= Rank(0)) events_.push_back(event);
    }
    return result;
  }
  // In the order of ranks, which are placed by it.
  static Sender Worker(int rank) {
    return {WorkerId(absl::StrCat(rank < 10 ? "n" : "nx", rank)), Incarnation(1)};
  }

  void Start(int32_t world_size) {
    world_size_ = world_size;
    for (int rank = 0; rank < world_size; ++rank) {
      Member member;
      member.incarnation = Incarnation(1);
      member.num_devices = 1;
      ASSERT_OK(Run(
          [&](Effects* e) { return core_.RegisterWorker(Worker(rank).worker, member, now_, e); }));
    }
    JobConfig config;
    config.world_size = world_size;
    ModelSpec model;
    for (const char* name : {"root", "blocks.1", "blocks.2"})
      model.units.push_back(
          {name, {TensorSpec{absl::StrCat(name, ".w"), {8, 4}, DType::kFp32, true, ""}}});
    ASSERT_OK(Run([&](Effects* e) -> absl::Status {
      const auto view = core_.CreateJob({"r1", kJob, *MakeJobSpec(model, config, 0)}, now_, e);
      if (view.ok()) generation_ = view->generation;
      return view.status();
    }));
    Prepare();
  }
  void Prepare() {
    const Epoch epoch = Job().status.epoch;
    for (int rank = 0; rank < world_size_; ++rank) {
      ASSERT_OK(Run([&](Effects* e) {
        return core_.ReportPrepared(Worker(rank), {kJob, generation_, epoch, Step(0)}, now_, e);
      }));
    }
    ASSERT_EQ(Job().status.state, JobState::kRunning);
  }
  JobView Job() { return *core_.GetJob(kJob); }

  void Beat(int rank, int64_t step, int64_t sequence, const std::string& doing = "idle",
            bool attached = true, double compute_seconds = 0, int64_t finished = 0) {
    RankStatus status;
    status.finished = Incarnation(finished);
    status.step = Step(step);
    status.sequence = sequence;
    status.doing = doing;
    status.attached = attached;
    status.compute_seconds = compute_seconds;
    const std::vector<JobProgress> jobs = {
        {kJob, generation_, Job().status.epoch, {{rank, status}}}};
    ASSERT_OK(Run([&](Effects* e) { return core_.Heartbeat(Worker(rank), jobs, now_, e); }));
  }
  // All ranks but the last one have gone past it: they are in the next unshard, one has gone on.
  void LeaveTheLastBehind() {
    Beat(0, 12, 7, "unshard blocks.2");
    for (int rank = 1; rank + 1 < world_size_; ++rank) Beat(rank, 12, 7, "unshard blocks.2");
    Beat(world_size_ - 1, 12, 6);
  }
  void Announce(int rank, int64_t step, int64_t sequence, int64_t unit) {
    OrderAnnouncement order = {kJob,
                               generation_,
                               Job().status.epoch,
                               Rank(rank),
                               {Step(step), sequence, 0},
                               {"unshard", UnitId(unit)}};
    ASSERT_OK(Run([&](Effects* e) { return core_.Announce(Worker(rank), order, now_, e); }));
  }
  void Tick() {
    Run([&](Effects* e) {
      core_.Tick(now_, e);
      return 0;
    });
    Run([&](Effects* e) {
      core_.WatchRanks(now_, e);
      EXPECT_THAT(e->records, IsEmpty()) << "so that nothing is to be rolled back";
      return 0;
    });
  }
  // As the ticker does.
  void Pass(absl::Duration time) {
    const absl::Time until = now_ + time;
    while (now_ < until) {
      now_ = std::min(until, now_ + absl::Milliseconds(500));
      Tick();
    }
  }
  std::vector<EventKind> Kinds() const {
    std::vector<EventKind> kinds;
    for (const ClusterEvent& event : events_) kinds.push_back(event.kind);
    return kinds;
  }

  absl::Time now_ = absl::UnixEpoch();
  int32_t world_size_ = 0;
  Coordinator core_{CoordinatorOptions()};
  Effects effects_;
  std::vector<ClusterEvent> events_;  // About ranks.
  Generation generation_;
};

TEST_F(RankWatchTest, MissingRankIsNamedWithWhereItIsMissingAndWhatTheOthersDo) {
  Start(4);
  for (int64_t sequence = 0; sequence < 7; ++sequence) {
    for (int rank = 0; rank < 4; ++rank) Announce(rank, 1, sequence, sequence % 3);
  }
  Tick();
  Beat(0, 12, 7, "unshard root");
  Beat(1, 12, 9, "step");
  Beat(2, 12, 9, "step");
  Beat(3, 12, 6, "idle");
  Tick();
  Pass(absl::Seconds(29.5));
  EXPECT_THAT(events_, IsEmpty());
  Pass(absl::Seconds(0.5));
  ASSERT_THAT(events_, SizeIs(1));
  const ClusterEvent& event = events_[0];
  EXPECT_EQ(event.kind, EventKind::kRankMissing);
  EXPECT_EQ(event.severity, EventSeverity::kWarning);
  EXPECT_EQ(event.job, kJob);
  EXPECT_EQ(event.generation, generation_);
  EXPECT_EQ(event.epoch, Epoch(1));
  EXPECT_EQ(event.rank, Rank(3));
  EXPECT_EQ(event.worker, WorkerId("n3"));
  EXPECT_EQ(event.text,
            "rank 3 on worker n3 is missing at unshard root (step 12, operation 7) for 30s; ranks "
            "0, 1, 2 wait: ranks 1, 2 in step, rank 0 in unshard root; its trainer is attached "
            "and submits no operation");
  EXPECT_EQ(Job().status.reason, event.text);
  EXPECT_EQ(effects_.changed_jobs.count(kJob), 1) << "its watchers see the reason";
  Pass(absl::Minutes(10));
  EXPECT_THAT(events_, SizeIs(1));
  EXPECT_EQ(Job().status.epoch, Epoch(1)) << "it is only named";
}

TEST_F(RankWatchTest, RankThatComesAfterAllHasArrivedAndTheReasonIsGone) {
  Start(2);
  const std::string reason = Job().status.reason;
  LeaveTheLastBehind();
  Pass(absl::Seconds(31));
  ASSERT_THAT(Kinds(), ElementsAre(EventKind::kRankMissing));
  Beat(1, 12, 7, "unshard blocks.2");
  Tick();
  ASSERT_THAT(Kinds(), ElementsAre(EventKind::kRankMissing, EventKind::kRankArrived));
  EXPECT_EQ(events_[1].rank, Rank(1));
  EXPECT_EQ(events_[1].text, "rank 1 on worker n1 has arrived");
  EXPECT_EQ(Job().status.reason, reason);
}

TEST_F(RankWatchTest, RankThatComesAndIsDoneBeforeTheNextLookHasArrived) {
  Start(2);
  LeaveTheLastBehind();
  Pass(absl::Seconds(31));
  ASSERT_THAT(Kinds(), ElementsAre(EventKind::kRankMissing));
  for (int rank = 0; rank < 2; ++rank)
    Beat(rank, 13, 0, "idle", /*attached=*/false, /*compute_seconds=*/0, /*finished=*/7);
  ASSERT_TRUE(Job().status.completed);
  EXPECT_THAT(Kinds(), ElementsAre(EventKind::kRankMissing, EventKind::kRankArrived));
  EXPECT_EQ(events_[1].rank, Rank(1));
  EXPECT_THAT(Job().missing_ranks, IsEmpty());
  EXPECT_THAT(Job().status.reason, HasSubstr("all of its trainers are done"));
  Pass(absl::Minutes(1));
  EXPECT_THAT(events_, SizeIs(2));
}

// In the first step of an epoch ranks wait for the release of what they have announced, and seem to
// be where the missing rank is.
TEST_F(RankWatchTest, RankThatDoesNotAnnounceWhatTheOthersHaveIsMissing) {
  Start(2);
  Beat(0, 1, 0, "unshard blocks.1");
  Beat(1, 1, 0);
  Announce(0, 1, 0, 1);
  Tick();
  Pass(absl::Seconds(30));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_THAT(events_[0].text, HasSubstr("rank 1 on worker n1 is missing at unshard blocks.1 "
                                         "(step 1, operation 1) for 30s; rank 0 waits: in unshard "
                                         "blocks.1"));
}

TEST_F(RankWatchTest, TextSaysWhetherATrainerIsAttachedAndWhatItIsIn) {
  Start(2);
  Beat(0, 12, 7);
  Beat(1, 12, 6, "idle", /*attached=*/false);
  Tick();
  Pass(absl::Seconds(30));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_THAT(events_[0].text,
              AllOf(HasSubstr("rank 0 waits: idle"), HasSubstr("no trainer is attached to it")));
  Beat(1, 12, 8, "save");
  Beat(0, 12, 9);
  Tick();
  Pass(absl::Seconds(30));
  ASSERT_THAT(events_, SizeIs(3));
  EXPECT_THAT(events_[2].text, HasSubstr("its trainer is attached, and it is in save"));
}

TEST_F(RankWatchTest, RankOfWhichNothingIsHeardInTheEpochIsMissing) {
  Start(2);
  Beat(0, 12, 7);
  Tick();
  Pass(absl::Seconds(30));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_THAT(events_[0].text, HasSubstr("it has not reported in this epoch"));
}

TEST_F(RankWatchTest, JobWithoutAnyTrainerHasNoMissingRank) {
  Start(2);
  Beat(0, 12, 7, "idle", /*attached=*/false);
  Beat(1, 12, 6, "idle", /*attached=*/false);
  Tick();
  Pass(absl::Minutes(60));
  EXPECT_THAT(events_, IsEmpty());
  Beat(0, 12, 7, "idle", /*attached=*/true);
  Pass(absl::Seconds(31));
  EXPECT_THAT(events_, SizeIs(1)) << "somebody waits now";
}

TEST_F(RankWatchTest, RanksThatAllHangAtOnePlaceAreNotNamed) {
  Start(3);
  for (int rank = 0; rank < 3; ++rank) Beat(rank, 12, 7, "step");
  Pass(absl::Hours(1));
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(RankWatchTest, EpochOfAMissingRankEndsWithThatReasonAndTheNextBeginsAnew) {
  CoordinatorOptions options;
  options.end_hung_epochs = true;
  Make(options);
  Start(4);
  LeaveTheLastBehind();
  Tick();
  Pass(absl::Seconds(30));
  ASSERT_THAT(Kinds(), ElementsAre(EventKind::kRankMissing));
  const absl::Time named = now_;
  Pass(absl::Seconds(1));
  EXPECT_LE(now_ - named, absl::Seconds(3));
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_THAT(Job().status.reason, HasSubstr(events_[0].text));
  Prepare();
  EXPECT_THAT(Job().status.reason, HasSubstr("rank 3 on worker n3 is missing")) << "its cause";
  Pass(absl::Minutes(5));
  EXPECT_THAT(events_, SizeIs(1)) << "nobody has issued anything in the new epoch";
  LeaveTheLastBehind();
  Tick();
  Pass(absl::Seconds(30));
  EXPECT_THAT(events_, SizeIs(2));
}

TEST_F(RankWatchTest, EndOfAHungEpochIsToldByItsCauseOnce) {
  CoordinatorOptions options;
  options.end_hung_epochs = true;
  Make(options);
  Start(2);
  LeaveTheLastBehind();
  Tick();
  Pass(absl::Seconds(30));
  Run([&](Effects* e) {
    core_.Tick(now_, e);
    return 0;
  });
  EXPECT_THAT(effects_.opened_epochs, ElementsAre(Pair(kJob, EpochCause::kMissingRank)));
}

// The journal refuses the new epoch: the failure stays, and the next tick tries again.
TEST_F(RankWatchTest, EpochThatCannotBeJournalledEndsLaterAndTheRankIsNamedOnce) {
  CoordinatorOptions options;
  options.end_hung_epochs = true;
  Make(options);
  Start(2);
  LeaveTheLastBehind();
  Tick();
  Pass(absl::Seconds(30));
  for (int i = 0; i < 3; ++i) {
    Effects refused;
    core_.Tick(now_, &refused);
    core_.Rollback();
  }
  EXPECT_EQ(Job().status.epoch, Epoch(1));
  Tick();
  EXPECT_EQ(Job().status.epoch, Epoch(2));
  EXPECT_THAT(events_, SizeIs(1));
}

TEST_F(RankWatchTest, PatienceZeroWatchesNobody) {
  CoordinatorOptions options;
  options.hang_after = absl::ZeroDuration();
  Make(options);
  Start(2);
  LeaveTheLastBehind();
  Pass(absl::Hours(1));
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(RankWatchTest, PauseOfTheCoordinatorIsNobodysDelay) {
  Start(2);
  LeaveTheLastBehind();
  Pass(absl::Seconds(1));
  now_ += absl::Minutes(10);
  Pass(absl::Seconds(28));
  EXPECT_THAT(events_, IsEmpty());
  Pass(absl::Seconds(3));
  EXPECT_THAT(events_, SizeIs(1));
}

TEST_F(RankWatchTest, ManyMissingRanksAreAFewEventsThatSayHowMany) {
  Start(20);
  Beat(0, 12, 7, "step");
  for (int rank = 1; rank < 20; ++rank) Beat(rank, 12, 6);
  Tick();
  Pass(absl::Seconds(30));
  ASSERT_THAT(events_, SizeIs(RankWatch::kMaxNamed));
  EXPECT_THAT(events_[0].text,
              HasSubstr("missing too: ranks 2, 3, 4, 5, 6, 7, 8, 9 and 10 more; "));
  EXPECT_LT(events_[0].text.size(), 1000);
}

class StragglerTest : public RankWatchTest {
 protected:
  // `num_steps` steps of 0.9 s, in which rank 3 computes for `compute_s` and the others for 0.4 s.
  void Train(int64_t num_steps, double compute_s) {
    for (int64_t i = 0; i < num_steps; ++i) {
      now_ += absl::Seconds(0.9);
      ++step_;
      for (int rank = 0; rank < 4; ++rank) {
        computed_[rank] += rank == 3 ? compute_s : 0.4;
        Beat(rank, step_, 0, "idle", true, computed_[rank]);
      }
      Tick();
    }
  }

  int64_t step_ = 0;
  double computed_[4] = {};
};

TEST_F(StragglerTest, RankIsSlowAfterTwoWindowsAndNamedWithItsShareUntilItIsNot) {
  Start(4);
  Train(1, 0.72);
  Train(20, 0.72);
  EXPECT_THAT(events_, IsEmpty());
  Train(20, 0.72);
  ASSERT_THAT(Kinds(), ElementsAre(EventKind::kRankSlow));
  EXPECT_EQ(events_[0].text,
            "rank 3 on worker n3 computes 1.8 times as long as the median rank: 0.32 s of each "
            "0.9 s step the others wait for it");
  EXPECT_EQ(events_[0].rank, Rank(3));
  EXPECT_EQ(Job().status.reason, events_[0].text);
  Train(20, 0.4);
  EXPECT_THAT(events_, SizeIs(1));
  Train(20, 0.4);
  ASSERT_THAT(Kinds(), ElementsAre(EventKind::kRankSlow, EventKind::kRankNotSlow));
  EXPECT_EQ(events_[1].text,
            "rank 3 on worker n3 is not slow any more: it computes 0.4 s of each 0.9 s step, the "
            "median rank 0.4 s");
  EXPECT_EQ(events_[1].severity, EventSeverity::kInfo);
}

TEST_F(StragglerTest, NewEpochForgetsTheWindowsOfTheOld) {
  Start(4);
  Train(21, 0.72);
  ASSERT_OK(Run([&](Effects* e) {
    return core_.ReportFailure(Worker(0), {kJob, generation_, Epoch(1), Rank(0), "test"}, now_, e);
  }));
  Prepare();
  Train(21, 0.72);
  EXPECT_THAT(events_, IsEmpty());
  Train(20, 0.72);
  EXPECT_THAT(Kinds(), ElementsAre(EventKind::kRankSlow));
}

}  // namespace
}  // namespace tessera::coordinator
