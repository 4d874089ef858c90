// Waits for a rank that is not there end by their timeouts, and say which it is.
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MissingRankTest : public TorchCluster {
 protected:
  // Of a job that gives up soon.
  SessionOptions Hurried(int rank) const {
    SessionOptions options = OptionsFor(rank, 2);
    options.config.collective_timeout = absl::Milliseconds(300);
    options.operation_timeout = absl::Seconds(2);
    options.attach_timeout = absl::Seconds(2);
    return options;
  }
  static absl::Status TrainStep(Trainer& trainer, int* tries = nullptr) {
    return trainer.model->RunStep([&] {
      if (tries != nullptr) ++*tries;
      LossOf(*trainer.net, trainer.model->next_step(), trainer.rank).backward();
      return trainer.model->Step();
    });
  }
};

TEST_F(MissingRankTest, OneThatDetachesIsNamedByTheOthersWhoseStepEndsByItsTimeout) {
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        for (int step = 1; step <= 2; ++step) ASSERT_OK(TrainStep(trainer));
        if (trainer.rank == 1) return;  // Its program ends.
        int tries = 0;
        EXPECT_THAT(TrainStep(trainer, &tries),
                    StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("rank 1 has no trainer"), HasSubstr("at step 3"))));
        EXPECT_GT(tries, 1) << "another trainer might have come";
      },
      [&](SessionOptions* options) { *options = Hurried(options->rank); });
}

TEST_F(MissingRankTest, OneThatComesBackInTimeIsWaitedFor) {
  absl::Notification left;
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        ASSERT_OK(TrainStep(trainer));
        if (trainer.rank == 0) {
          left.WaitForNotification();
          EXPECT_OK(TrainStep(trainer));
          return;
        }
        trainer.model.reset();
        left.Notify();
        trainer.net = MakeNet();
        SessionOptions options = Hurried(1);
        options.operation_timeout = absl::Seconds(60);
        ASSERT_OK_AND_ASSIGN(trainer.model, ShardedModel::Attach(trainer.net, options));
        EXPECT_EQ(trainer.model->next_step(), 2);
        EXPECT_OK(TrainStep(trainer));
      },
      [&](SessionOptions* options) {
        *options = Hurried(options->rank);
        options->operation_timeout = absl::Seconds(60);
      });
}

TEST_F(MissingRankTest, OneThatNeverComesIsNamedByTheOthersWhoseAttachEndsByItsTimeout) {
  const auto model = ShardedModel::Attach(MakeNet(), Hurried(0));
  EXPECT_THAT(model.status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 has no trainer")));
}

TEST_F(MissingRankTest, OneThatDoesNotGoOnIsNamed) {
  absl::Notification given_up;
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        ASSERT_OK(TrainStep(trainer));
        if (trainer.rank == 1) {  // Attached, and busy with something else.
          given_up.WaitForNotification();
          return;
        }
        EXPECT_THAT(TrainStep(trainer), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                                 HasSubstr("rank 1 is behind, at step 2")));
        given_up.Notify();
      },
      [&](SessionOptions* options) {
        *options = Hurried(options->rank);
        options->config.collective_timeout = absl::Seconds(20);
      });
}

}  // namespace
}  // namespace tessera
