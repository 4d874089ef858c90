// What trainers and workers tell the coordinator while a job is handed over, and what it answers,
// is lost, repeated, delayed and cut: one of the two jobs goes on, and its final model is the same
// bytes as that of an undisturbed run. Real processes.
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/resize/hand_over_rpc.h"
#include "gtest/gtest.h"
#include "tessera/hand_over.h"
#include "tests/demo/child_process.h"
#include "tests/fault/lossy/lossy_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::TrainerTeam;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

class LossyHandOverTest : public LossyCluster {
 protected:
  void TearDown() override {
    team_.reset();
    LossyCluster::TearDown();
  }
  // Of the job "next", on the spare worker.
  void StartTaker(int rank) {
    auto started = demo::ChildProcess::Start(
        {"tests/fault/toy_trainer", "--coordinator=" + dialled_address(),
         "--worker=unix:" + folder_ + "/spare/worker.sock", absl::StrCat("--rank=", rank),
         absl::StrCat("--world-size=", kWorldSize), absl::StrCat("--steps=", kSteps),
         "--save=" + model_path(), "--job=next", "--take-over-from=toy"},
        folder_ + "/taker.log");
    ASSERT_OK(started);
    takers_.push_back(*std::move(started));
  }
  // All ranks; their outcomes.
  std::vector<absl::Status> HandOverAll() {
    return team_->Run([](Session* session) -> absl::Status {
      while (true) {
        const absl::Status status = HandOver(session);
        if (!absl::IsAborted(status)) return status;
        RETURN_IF_ERROR(session->Recover());
      }
    });
  }

  std::vector<std::unique_ptr<demo::ChildProcess>> takers_;
  std::optional<TrainerTeam> team_;
};

// Workers and trainers have a layer each: every call of the few that trainers make has a fate. A
// worker's stream that does not come is waited for, so these are few.
TEST_P(LossyHandOverTest, JobThatIsHandedOverGoesOnAsTheOtherOneToTheSameBits) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  Layer of_workers;
  ASSERT_NO_FATAL_FAILURE(StartLayer(coordinator_address(), 2 * kSome, &of_workers));
  proxy_address_ = of_workers.address;
  StartWorker();
  ASSERT_NO_FATAL_FAILURE(StartLayer(kEach));
  trainer_flags_ = {absl::StrCat("--hand-over-at=", kSteps / 3)};
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  AwaitStep(0, 1);  // It has its places.
  proxy_address_ = of_workers.address;
  StartSpareWorker();
  proxy_address_ = layer_.address;
  for (int rank = 0; rank < kWorldSize; ++rank) ASSERT_NO_FATAL_FAILURE(StartTaker(rank));
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(AwaitEnd(rank), 0) << "rank " << rank;
  trainers_ = std::move(takers_);
  EXPECT_EQ(Finish(), UndisturbedModel());
  const std::string fates = EndLayer();
  for (const char* method : {"Offer", "AwaitEnd", "Get", "Read", "TakeOver"})
    ExpectEveryFate(fates, absl::StrCat("tessera.v1.HandOvers/", method));
  (void)End(&of_workers);
}

TEST_P(LossyHandOverTest, HandOverIsTakenBackOnceHoweverOftenItIsSaid) {
  StartCoordinator();
  StartWorker();
  ASSERT_NO_FATAL_FAILURE(StartLayer(kEach));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions()));
  team_.emplace(std::move(team));
  int64_t last_number = 0;
  for (int64_t step = 1; step <= kEach; ++step) {
    SCOPED_TRACE(step);
    ASSERT_OK(team_->TrainTo(step));
    std::vector<absl::Status> ends;
    std::thread trainers([&] { ends = HandOverAll(); });
    v1::GetHandOverRequest get;
    get.set_job_id("toy");
    const auto offered = HandOverRpc({coordinator_address()}).Get(get, Soon());
    EXPECT_OK(offered);
    v1::CancelHandOverRequest cancel;
    cancel.set_job_id("toy");
    const auto cancelled = HandOverRpc({dialled_address()}).Cancel(cancel, Soon());
    trainers.join();
    ASSERT_OK(cancelled);
    EXPECT_EQ(cancelled->number(), offered->number());
    EXPECT_EQ(cancelled->phase(), v1::HAND_OVER_PHASE_CANCELLED);
    EXPECT_GT(cancelled->number(), last_number);
    last_number = cancelled->number();
    for (const absl::Status& end : ends) EXPECT_TRUE(absl::IsCancelled(end)) << end;
  }
  ASSERT_OK(team_->TrainTo(kEach + 1));
  ExpectEveryFate(EndLayer(), "tessera.v1.HandOvers/Cancel");
}

INSTANTIATE_TEST_SUITE_P(Seeds, LossyHandOverTest, testing::Range(1, 4));

}  // namespace
}  // namespace tessera
