// Processes are killed while a job is handed over: the state is not lost, one of the two jobs goes
// on, and its final model is the same bytes as that of an undisturbed run.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/resize/hand_over_rpc.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "tessera/hand_over.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::IsStopped;
using testing_support::ToyModel;
using testing_support::TrainerTeam;
using testing_support::VaultOf;

class HandOverKillTest : public ProcessCluster {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    ProcessCluster::SetUp();
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    if (taking_.joinable()) taking_.join();
    ProcessCluster::TearDown();
  }

  // Trains a third of all steps and hands over.
  void HandOverAThird() {
    ASSERT_FALSE(UndisturbedModel().empty());
    trainer_flags_ = {absl::StrCat("--hand-over-at=", kSteps / 3)};
    StartAll();
    ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_OFFERED));
    StartSpareWorker();
  }
  std::optional<v1::HandOverInfo> Get() {
    v1::GetHandOverRequest request;
    request.set_job_id("toy");
    const auto info =
        HandOverRpc({coordinator_address()}).Get(request, absl::Now() + absl::Seconds(20));
    return info.ok() ? std::make_optional(*info) : std::nullopt;
  }
  void AwaitPhase(v1::HandOverPhase phase) {
    ASSERT_TRUE(Eventually([&] {
      const auto info = Get();
      return info.has_value() && info->phase() == phase;
    })) << v1::HandOverPhase_Name(phase);
  }
  void OpenTakers(const std::string& job = "next") {
    SessionOptions options;
    options.coordinator_address = coordinator_address();
    options.worker_address = absl::StrCat("unix:", folder_, "/spare/worker.sock");
    options.job_id = job;
    options.model = ToyModel(4);
    options.config.world_size = kWorldSize;
    options.config.strategy = Strategy::kShardGradOp;
    options.config.groups[0].learning_rate = 0.01;
    options.config.max_gradient_norm = 1.0;
    options.operation_timeout = absl::Seconds(60);
    groups_ = options.config.groups;
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    team_.emplace(std::move(team));
  }
  // As trainers that must continue whichever process dies.
  static absl::Status TakeOverAlways(Session* session) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (true) {
      const absl::StatusOr<TakenOver> taken = TakeOver(session, {"toy", absl::Seconds(60)});
      if (taken.ok()) {
        EXPECT_EQ(taken->step, kSteps / 3);
        EXPECT_THAT(taken->trainer_states, testing::ElementsAre("0", "1", "2"));
      }
      if (!absl::IsAborted(taken.status()) || absl::Now() > deadline) return taken.status();
      RETURN_IF_ERROR(session->Recover());
    }
  }
  void TakeOverInBackground() {
    taking_ = std::thread([this] { taken_ = team_->RunAll(TakeOverAlways); });
  }
  // The rest of the steps, by the new job; its model has the bytes of an undisturbed run.
  void ExpectTakersGoOn() {
    if (taking_.joinable()) taking_.join();
    ASSERT_OK(taken_);
    const auto numbers = [this](int64_t step) {  // As those of toy_trainer.cc.
      StepOptions of_step;
      of_step.groups = {groups_[0]};
      of_step.groups[0].learning_rate *= 1.0 / static_cast<double>(step);
      of_step.groups[0].beta1 = 0.9 - 0.01 * static_cast<double>(step % 5);
      return of_step;
    };
    ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
      EXPECT_EQ(session->next_step(), kSteps / 3 + 1);
      RETURN_IF_ERROR(testing_support::TrainToy(session, kSteps, nullptr, 1, numbers));
      return session->Save(model_path());
    }));
    EXPECT_EQ(testing_support::ReadFile(model_path()), UndisturbedModel());
    ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_DONE));
    EXPECT_TRUE(Eventually([&] { return ExecutorsOf(worker_->pid()).empty(); }))
        << "the old job's memory is not given back";
  }
  void ExpectOldTrainersEnded() {
    for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(AwaitEnd(rank), 0) << "rank " << rank;
  }
  static void KillExecutors(int worker_pid, const std::string& label) {
    const auto executors = ExecutorsOf(worker_pid);
    ASSERT_EQ(executors.count(label), 1) << label;
    kill(executors.at(label), SIGKILL);
  }
  void KillCoordinator() {
    coordinator_->Kill(SIGKILL);
    coordinator_->Wait();
  }

  std::optional<TrainerTeam> team_;
  std::vector<ParamGroup> groups_;
  std::thread taking_;
  absl::Status taken_;
};

TEST_F(HandOverKillTest, StateOutlivesTrainersExecutorsAndCoordinatorOfTheOldJob) {
  ASSERT_NO_FATAL_FAILURE(HandOverAThird());
  for (const auto& trainer : trainers_) trainer->Kill(SIGKILL);
  for (int rank = 0; rank < kWorldSize; ++rank)
    KillExecutors(worker_->pid(), absl::StrCat("toy/", rank));
  KillCoordinator();
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  TakeOverInBackground();
  ASSERT_NO_FATAL_FAILURE(ExpectTakersGoOn());
}

TEST_F(HandOverKillTest, OldTrainersLearnTheEndFromACoordinatorThatStartedAgain) {
  ASSERT_NO_FATAL_FAILURE(HandOverAThird());
  KillCoordinator();
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  TakeOverInBackground();
  ASSERT_NO_FATAL_FAILURE(ExpectTakersGoOn());
  ExpectOldTrainersEnded();
}

TEST_F(HandOverKillTest, JobOfTwoWorkersGoesOnOnAnotherOneWhicheverProcessDies) {
  ASSERT_FALSE(UndisturbedModel().empty());
  split_ = true;
  trainer_flags_ = {absl::StrCat("--hand-over-at=", kSteps / 3)};
  StartCoordinator();
  StartWorker();
  StartSecondWorker();
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_OFFERED));
  trainers_[0]->Kill(SIGKILL);
  KillExecutors(worker_->pid(), "toy/0");
  KillExecutors(second_worker_->pid(), "toy/2");
  StartSpareWorker();
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  TakeOverInBackground();
  ASSERT_NO_FATAL_FAILURE(ExpectTakersGoOn());
  EXPECT_TRUE(Eventually([&] { return ExecutorsOf(second_worker_->pid()).empty(); }));
  for (int rank : {1, 2}) EXPECT_EQ(AwaitEnd(rank), 0) << "rank " << rank;
}

struct Place {
  const char* point;  // Where one rank of the new job stands.
  bool kill_new_executor, kill_old_executor, kill_coordinator;
};

class HandOverKillPointTest : public HandOverKillTest, public testing::WithParamInterface<Place> {};

TEST_P(HandOverKillPointTest, NewJobHasTheStateAndTheOldOneIsOver) {
  ASSERT_NO_FATAL_FAILURE(HandOverAThird());
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint(GetParam().point, hold);
  TakeOverInBackground();
  const std::string point = GetParam().point;
  if (point != "take-over.read") {
    ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_ACCEPTED));
    v1::CancelHandOverRequest cancel;
    cancel.set_job_id("toy");
    EXPECT_THAT(
        HandOverRpc({coordinator_address()}).Cancel(cancel, absl::Now() + absl::Seconds(20)),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'next'")));
  }
  if (point == "take-over.committed") {
    ASSERT_TRUE(Eventually([&] { return team_->session(0)->initialized(); }));
  }
  if (GetParam().kill_new_executor) KillExecutors(spare_worker_->pid(), "next/1");
  if (GetParam().kill_old_executor) KillExecutors(worker_->pid(), "toy/2");
  if (GetParam().kill_coordinator) {
    KillCoordinator();
    StartCoordinator();
  }
  DisarmAllFaultPoints();
  ASSERT_NO_FATAL_FAILURE(ExpectTakersGoOn());
  ExpectOldTrainersEnded();
}

INSTANTIATE_TEST_SUITE_P(Points, HandOverKillPointTest,
                         testing::Values(Place{"take-over.read", true, false, false},
                                         Place{"take-over.read", false, true, true},
                                         Place{"take-over.accepted", true, false, false},
                                         Place{"take-over.accepted", true, true, true},
                                         Place{"take-over.committed", true, false, false},
                                         Place{"take-over.committed", true, true, true}),
                         [](const auto& info) {
                           std::string name = info.param.point;
                           name.erase(std::remove_if(name.begin(), name.end(),
                                                     [](char c) { return !isalpha(c); }),
                                      name.end());
                           return absl::StrCat(name,
                                               info.param.kill_new_executor ? "NewExecutor" : "",
                                               info.param.kill_old_executor ? "OldExecutor" : "",
                                               info.param.kill_coordinator ? "Coordinator" : "");
                         });

TEST_F(HandOverKillTest, StateOutlivesTheNewJobsWorkerThatDiesBeforeItHasIt) {
  ASSERT_NO_FATAL_FAILURE(HandOverAThird());
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("take-over.accepted", hold);
  TakeOverInBackground();
  ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_ACCEPTED));
  spare_worker_->Kill(SIGKILL);
  spare_worker_->Wait();
  DisarmAllFaultPoints();
  taking_.join();
  EXPECT_FALSE(taken_.ok());
  team_.reset();
  StartSpareWorker();
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  EXPECT_FALSE(team_->session(0)->initialized()) << "it begins again";
  TakeOverInBackground();
  ASSERT_NO_FATAL_FAILURE(ExpectTakersGoOn());
  ExpectOldTrainersEnded();
}

// The trainers of the new job are processes of their own, which can be stopped.
class HandOverStopTest : public HandOverKillTest {
 protected:
  HandOverStopTest() { keep_memory_ = "30s"; }
  void TearDown() override {
    takers_.clear();
    if (const int vault = VaultOf(folder_); vault > 0) kill(vault, SIGKILL);
    HandOverKillTest::TearDown();
  }
  // The final model of a run without failures.
  std::string RunUndisturbed() {
    StartAll();
    std::string model = Finish();
    TearDown();
    SetUp();
    return model;
  }
  void StartTaker(int rank, const std::string& faults = "") {
    std::vector<std::string> args = {"tests/fault/toy_trainer",
                                     "--coordinator=" + coordinator_address(),
                                     "--worker=unix:" + folder_ + "/spare/worker.sock",
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--world-size=", kWorldSize),
                                     absl::StrCat("--steps=", kSteps),
                                     "--save=" + model_path(),
                                     "--job=next",
                                     "--take-over-from=toy",
                                     "--replace"};
    args.insert(args.end(), model_flags_.begin(), model_flags_.end());
    if (!faults.empty()) args.push_back("--fault-points=" + faults);
    auto started = demo::ChildProcess::Start(args, folder_ + "/taker.log");
    ASSERT_OK(started);
    takers_.resize(kWorldSize);
    takers_[rank] = *std::move(started);
  }
  void HandOver() {
    trainer_flags_ = model_flags_;
    trainer_flags_.push_back(absl::StrCat("--hand-over-at=", kSteps / 3));
    StartAll();
    ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_OFFERED));
    StartSpareWorker();
  }
  static void AwaitStop(int pid) {
    ASSERT_TRUE(Eventually([pid] { return IsStopped(pid); })) << "it did not come there";
  }
  static void End(demo::ChildProcess* process) {
    process->Kill(SIGKILL);
    process->Wait();
  }
  // The new job's model.
  std::string FinishTakers() {
    ExpectOldTrainersEnded();
    trainers_ = std::move(takers_);
    return Finish();
  }

  std::vector<std::string> model_flags_;
  std::vector<std::unique_ptr<demo::ChildProcess>> takers_;
};

class StoppedTakerTest : public HandOverStopTest,
                         public testing::WithParamInterface<std::tuple<const char*, bool>> {};

TEST_P(StoppedTakerTest, IsBackAndTheNewJobHasTheBitsOfAnUndisturbedRun) {
  const auto& [point, is_replaced] = GetParam();
  if (point == std::string("take-over.read-buffer")) model_flags_ = {"--buffers"};
  trainer_flags_ = model_flags_;
  const std::string undisturbed = model_flags_.empty() ? UndisturbedModel() : RunUndisturbed();
  ASSERT_FALSE(undisturbed.empty());
  ASSERT_NO_FATAL_FAILURE(HandOver());
  for (int rank = 0; rank < kWorldSize; ++rank)
    StartTaker(rank, rank == 1 ? absl::StrCat(point, "=stop@1") : "");
  ASSERT_NO_FATAL_FAILURE(AwaitStop(takers_[1]->pid()));
  for (const int rank : {0, 2}) EXPECT_TRUE(takers_[rank]->running()) << rank;
  if (is_replaced) {
    End(takers_[1].get());
    StartTaker(1);
  } else {
    takers_[1]->Kill(SIGCONT);
  }
  EXPECT_TRUE(FinishTakers() == undisturbed) << "of other bytes";
}

INSTANTIATE_TEST_SUITE_P(Points, StoppedTakerTest,
                         testing::Combine(testing::Values("take-over.read", "take-over.read-buffer",
                                                          "take-over.accepted",
                                                          "take-over.committed"),
                                          testing::Bool()));

class StoppedGiverTest : public HandOverStopTest, public testing::WithParamInterface<bool> {};

// The daemon that reads the old job's state for the new one.
TEST_P(StoppedGiverTest, IsBackAndTheNewJobHasTheBitsOfAnUndisturbedRun) {
  ASSERT_FALSE(UndisturbedModel().empty());
  daemon_faults_ = "hand-over.read=stop@1";
  ASSERT_NO_FATAL_FAILURE(HandOver());
  for (int rank = 0; rank < kWorldSize; ++rank) StartTaker(rank);
  ASSERT_NO_FATAL_FAILURE(AwaitStop(worker_->pid()));
  if (GetParam()) {
    End(worker_.get());
    daemon_faults_.clear();
    StartWorker();
  } else {
    worker_->Kill(SIGCONT);
  }
  EXPECT_TRUE(FinishTakers() == UndisturbedModel()) << "of other bytes";
}

INSTANTIATE_TEST_SUITE_P(IsReplaced, StoppedGiverTest, testing::Bool());

// The coordinator dies at its n-th change of the journal from before the hand-over on.
struct JournalKill {
  const char* point;
  int hit;
};

class HandOverJournalKillTest : public HandOverKillTest,
                                public testing::WithParamInterface<JournalKill> {
 protected:
  void TearDown() override {
    stop_.store(true);
    if (monitor_.joinable()) monitor_.join();
    HandOverKillTest::TearDown();
  }
  void StartFaultyCoordinator() {
    KillCoordinator();
    auto started = demo::ChildProcess::Start(
        {"coordinator/tessera-coordinator", "--listen=" + coordinator_address(),
         "--journal=" + folder_ + "/journal",
         absl::StrCat("--fault-points=journal.", GetParam().point, "=kill@", GetParam().hit)},
        folder_ + "/coordinator.log");
    ASSERT_OK(started);
    coordinator_ = *std::move(started);
    monitor_ = std::thread([this] {  // No other thread uses coordinator_ from here on.
      while (!stop_.load()) {
        if (!coordinator_->running()) {
          ++deaths_;
          StartCoordinator();
        }
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
  }

  std::thread monitor_;
  std::atomic<bool> stop_{false};
  std::atomic<int> deaths_{0};
};

TEST_P(HandOverJournalKillTest, NewJobHasTheStateAndTheOldOneIsOver) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = kSteps / 3;
  trainer_flags_ = {absl::StrCat("--hand-over-at=", kSteps / 3)};
  StartAll();
  AwaitStep(0, pause_at_);
  ASSERT_NO_FATAL_FAILURE(StartFaultyCoordinator());
  Resume();
  StartSpareWorker();
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  TakeOverInBackground();
  ASSERT_NO_FATAL_FAILURE(ExpectTakersGoOn());
  ExpectOldTrainersEnded();
  EXPECT_EQ(deaths_.load(), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Hits, HandOverJournalKillTest,
    testing::Values(JournalKill{"before_append", 1}, JournalKill{"before_append", 3},
                    JournalKill{"before_append", 5}, JournalKill{"before_append", 7},
                    JournalKill{"after_append", 1}, JournalKill{"after_append", 2},
                    JournalKill{"after_append", 3}, JournalKill{"after_append", 4},
                    JournalKill{"after_append", 5}, JournalKill{"after_append", 6},
                    JournalKill{"after_append", 7}),
    [](const auto& info) {
      const std::string point = info.param.point;
      return absl::StrCat(point == "before_append" ? "Before" : "After", info.param.hit);
    });

TEST_F(HandOverKillTest, CancelledBeforeItIsAcceptedTheOldJobGoesOnAndTheNewOneCannot) {
  ASSERT_NO_FATAL_FAILURE(HandOverAThird());
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("take-over.read", hold);
  TakeOverInBackground();
  KillExecutors(worker_->pid(), "toy/0");
  v1::CancelHandOverRequest cancel;
  cancel.set_job_id("toy");
  HandOverRpc rpc({coordinator_address()});
  ASSERT_OK(rpc.Cancel(cancel, absl::Now() + absl::Seconds(20)));
  KillCoordinator();
  StartCoordinator();
  EXPECT_EQ(Finish(), UndisturbedModel());
  DisarmAllFaultPoints();
  v1::DeleteJobRequest drop;  // Its trainers would wait for another hand-over.
  drop.set_request_id("drop");
  drop.set_job_id("toy");
  EXPECT_OK(DeleteJob({coordinator_address()}, drop, absl::Now() + absl::Seconds(20)));
  taking_.join();
  EXPECT_FALSE(taken_.ok());
  EXPECT_FALSE(team_->session(0)->initialized());
}

TEST_F(HandOverKillTest, WithTheNewJobDeletedBeforeItHasTheStateTheOldOneCanGoOn) {
  ASSERT_NO_FATAL_FAILURE(HandOverAThird());
  ASSERT_NO_FATAL_FAILURE(OpenTakers());
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("take-over.accepted", hold);
  TakeOverInBackground();
  ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_ACCEPTED));
  v1::DeleteJobRequest drop;
  drop.set_request_id("drop");
  drop.set_job_id("next");
  ASSERT_OK(DeleteJob({coordinator_address()}, drop, absl::Now() + absl::Seconds(20)));
  ASSERT_NO_FATAL_FAILURE(AwaitPhase(v1::HAND_OVER_PHASE_OFFERED));
  DisarmAllFaultPoints();
  taking_.join();
  EXPECT_FALSE(taken_.ok());
  v1::CancelHandOverRequest cancel;
  cancel.set_job_id("toy");
  ASSERT_OK(HandOverRpc({coordinator_address()}).Cancel(cancel, absl::Now() + absl::Seconds(20)));
  EXPECT_EQ(Finish(), UndisturbedModel());
}

}  // namespace
}  // namespace tessera
