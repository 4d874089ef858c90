// The code of one rank's trainer fails: every rank gets the error with its cause and the rank, the
// step is undone everywhere, and training continues to the same bits.
#include <atomic>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;
constexpr int kFailing = 1;

// Where in the step the code fails.
enum class Where { kBeforeForward, kInForward, kInBackward, kBeforeStep };

class RankFailureTest : public testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2 * kWorldSize;
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  // A whole step's operations up to where the failing rank's code fails.
  static absl::Status PartOfAStep(Session* session, Where where) {
    if (where == Where::kBeforeForward) return absl::OkStatus();
    for (int unit = 0; unit < session->num_units(); ++unit) {
      absl::Status status = session->Unshard(unit);
      if (!status.ok()) return status;
      if (where == Where::kInForward && unit == 1) return absl::OkStatus();
      if (status = session->Reshard(unit); !status.ok()) return status;
    }
    for (int unit = session->num_units() - 1; unit >= 0; --unit) {
      const auto& parameters = session->layout().units[unit].flat.parameters();
      for (size_t p = 0; p < parameters.size(); ++p) {
        const std::vector<float> ones(parameters[p].numel, 1.0f);
        const absl::Status status = session->AddGradient(unit, p, ones);
        if (!status.ok()) return status;
      }
      if (where == Where::kInBackward && unit == 1) return absl::OkStatus();
      if (absl::Status status = session->Reduce(unit); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  std::vector<float> Values(TrainerTeam* team) {
    std::vector<float> values;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      auto all = ReadAll(session);
      if (all.ok() && session->rank() == 0) values = *std::move(all);
      return all.status();
    }));
    return values;
  }
  std::vector<float> Undisturbed(int64_t steps) {
    auto team = TrainerTeam::Open(ToyOptions(*cluster_, "undisturbed", kWorldSize));
    EXPECT_OK(team);
    EXPECT_OK(team->TrainTo(steps));
    return Values(&*team);
  }

  std::unique_ptr<LocalCluster> cluster_;
};

TEST_P(RankFailureTest, IsEveryRanksErrorTheStepIsUndoneAndTrainingGoesOn) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  for (const int64_t before : {0, 3}) {  // While the order is recorded, and later.
    SCOPED_TRACE(before);
    ASSERT_OK(team.TrainTo(before));
    const std::vector<absl::Status> statuses = team.Run([&](Session* session) {
      const int64_t step = session->next_step();
      return session->RunStep([&]() -> absl::Status {
        if (session->rank() != kFailing) return ToyStep(session, step);
        const absl::Status status = PartOfAStep(session, GetParam());
        return status.ok() ? absl::OutOfRangeError("batch 7 is empty") : status;
      });
    });
    for (int rank = 0; rank < kWorldSize; ++rank) {
      EXPECT_THAT(
          statuses[rank],
          StatusIs(absl::StatusCode::kOutOfRange,
                   HasSubstr(rank == kFailing ? "batch 7 is empty" : "rank 1: batch 7 is empty")))
          << "rank " << rank;
      EXPECT_EQ(team.session(rank)->next_step(), before + 1) << "rank " << rank;
    }
  }
  ASSERT_OK(team.TrainTo(6));
  EXPECT_EQ(Values(&team), Undisturbed(6));
}

INSTANTIATE_TEST_SUITE_P(Places, RankFailureTest,
                         testing::Values(Where::kBeforeForward, Where::kInForward,
                                         Where::kInBackward, Where::kBeforeStep));

TEST_F(RankFailureTest, ExceptionIsToldToTheOtherRanksAndThrownOn) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<absl::Status> statuses = team.Run([](Session* session) -> absl::Status {
    try {
      return session->RunStep([&]() -> absl::Status {
        if (session->rank() == kFailing) throw std::runtime_error("bad batch");
        return ToyStep(session, 3);
      });
    } catch (const std::runtime_error& error) {
      return absl::InternalError(absl::StrCat("caught ", error.what()));
    }
  });
  EXPECT_THAT(statuses[kFailing], StatusIs(absl::StatusCode::kInternal, HasSubstr("bad batch")));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnknown, HasSubstr("rank 1: ")));
  ASSERT_OK(team.TrainTo(4));
}

// One rank is slow to look at the result of a step that was decided. Meanwhile another rank's code
// fails in the step after it.
TEST_F(RankFailureTest, IsTheErrorOfItsOwnStepAlsoWhereARankIsStillInTheOneBefore) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  ASSERT_OK(team.TrainTo(2));
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("trainer.result", hold);  // Of the rank that comes first.
  std::atomic<int> done{0};
  const std::vector<absl::Status> statuses = team.Run([&](Session* session) {
    EXPECT_OK(session->RunStep([&] { return ToyStep(session, 3); }));
    // The one before was first, and the one after it was held.
    const bool fails = ++done == kWorldSize - 1;
    const absl::Status next = session->RunStep(
        [&] { return fails ? absl::OutOfRangeError("batch 4 is empty") : ToyStep(session, 4); });
    if (fails) DisarmAllFaultPoints();
    return next;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("batch 4 is empty")));
  }
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(team.session(rank)->next_step(), 4);
  ASSERT_OK(team.TrainTo(6));
  EXPECT_EQ(Values(&team), Undisturbed(6));
}

// What only one rank got wrong is its own error; what all ranks were told is nobody's in
// particular.
TEST_F(RankFailureTest, ErrorThatAllRanksHaveBeginsNoNewEpoch) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<absl::Status> statuses = team.Run([](Session* session) {
    return session->RunStep([&]() -> absl::Status {
      const std::vector<float> gradient(session->layout().units[0].flat.parameters()[0].numel,
                                        std::numeric_limits<float>::infinity());
      const absl::Status status = session->AddGradient(0, 0, gradient);
      return status.ok() ? session->Step().status() : status;
    });
  });
  for (const absl::Status& status : statuses)
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("NaN or Inf")));
  ASSERT_OK_AND_ASSIGN(const v1::Job job, GetJob({cluster_->coordinator_address()}, "toy",
                                                 absl::Now() + absl::Seconds(10)));
  EXPECT_EQ(job.epoch(), 1);
  ASSERT_OK(team.TrainTo(4));
}

TEST_F(RankFailureTest, CodesWithAMeaningOfTheirOwnArriveAsUnknown) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  ASSERT_OK(team.TrainTo(0));  // Initial values.
  for (const absl::StatusCode code : {absl::StatusCode::kAborted, absl::StatusCode::kCancelled,
                                      absl::StatusCode::kDeadlineExceeded}) {
    const int64_t step = team.session(0)->next_step();
    const std::vector<absl::Status> statuses = team.Run([&](Session* session) {
      return session->RunStep([&] {
        return session->rank() == kFailing ? absl::Status(code, "mine") : ToyStep(session, step);
      });
    });
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnknown, HasSubstr("rank 1: mine")));
    ASSERT_OK(team.TrainTo(step));
  }
}

TEST_F(RankFailureTest, AbortedFromOneRankUndoesTheStepOfAllWithoutAnError) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  ASSERT_OK(team.TrainTo(2));
  std::atomic<int> bodies{0};
  const std::vector<absl::Status> statuses = team.Run([&](Session* session) {
    bool fails = session->rank() == kFailing;
    return session->RunStep([&]() -> absl::Status {
      ++bodies;
      if (std::exchange(fails, false)) {
        const absl::Status cause = absl::AbortedError("another job's step was undone");
        RETURN_IF_ERROR(session->Fail(cause));
        return cause;
      }
      return ToyStep(session, 3);
    });
  });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
  EXPECT_GT(bodies, kWorldSize);
  ASSERT_OK(team.TrainTo(5));
  EXPECT_EQ(Values(&team), Undisturbed(5));
}

// A model that takes no steps, say, which is undone with another one's step.
TEST_F(RankFailureTest, JobWhoseLastEpochWasUndoneWithoutAnErrorIsCompleted) {
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                         TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
    ASSERT_OK(team.TrainTo(1));
    const auto undo = [](Session* session) -> absl::Status {
      RETURN_IF_ERROR(session->Fail(absl::AbortedError("another job's step was undone")));
      return session->Recover();
    };
    for (const absl::Status& status : team.Run(undo)) EXPECT_OK(status);
  }
  EXPECT_TRUE(testing_support::Eventually([&] {
    const auto job =
        GetJob({cluster_->coordinator_address()}, "toy", absl::Now() + absl::Seconds(10));
    return job.ok() && job->state() == v1::JOB_STATE_COMPLETED;
  }));
}

}  // namespace
}  // namespace tessera
