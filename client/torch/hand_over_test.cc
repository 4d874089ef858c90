// An attached module goes on in a job of another size, from the memory of the one before.
#include "client/cpp/hand_over.h"

#include <thread>

#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class TorchHandOverTest : public TorchCluster {
 protected:
  static void TrainTo(Trainer& trainer, int64_t last_step) {
    while (trainer.model->next_step() <= last_step) {
      ASSERT_OK(trainer.model->RunStep([&] {
        // The same on both ranks, so that their mean is that of one.
        LossOf(*trainer.net, trainer.model->next_step(), /*rank=*/0).backward();
        return trainer.model->Step();
      }));
    }
  }
};

TEST_F(TorchHandOverTest, ModuleOnTheMetaDeviceGoesOnAsTheOneThatWasHandedOver) {
  std::map<std::string, torch::Tensor> expected;
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        TrainTo(trainer, 5);
        const auto whole = WholeParameters(trainer);
        if (trainer.rank == 0) expected = whole;
      },
      [](SessionOptions* options) { options->job_id = "whole"; });
  std::thread old([&] {
    OnEachRank(2, [&](Trainer& trainer) {
      TrainTo(trainer, 3);
      EXPECT_OK(HandOver(&trainer.model->session(), {"position"}));
    });
  });
  ForEachRank(1, [&](int rank) {
    Trainer trainer = {rank, MakeNet(), nullptr};
    MoveToMeta(*trainer.net);
    SessionOptions options = OptionsFor(rank, 1);
    options.job_id = "next";
    AttachOptions attach;
    TakenOver taken;
    attach.first_values = [&](Session* session) -> absl::Status {
      // The old job may not be there yet.
      absl::StatusOr<TakenOver> tried = absl::NotFoundError("");
      while (absl::IsNotFound(tried.status()))
        tried = TakeOver(session, {"torch", absl::Seconds(60)});
      if (tried.ok()) taken = *std::move(tried);
      return tried.status();
    };
    auto model = ShardedModel::Attach(trainer.net, options, AlwaysWrap(), attach);
    ASSERT_OK(model);
    trainer.model = *std::move(model);
    EXPECT_EQ(taken.step, 3);
    EXPECT_EQ(taken.trainer_states, std::vector<std::string>(2, "position"));
    TrainTo(trainer, 5);
    const auto whole = WholeParameters(trainer);
    for (const auto& [name, value] : whole)
      EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
  });
  old.join();
}

}  // namespace
}  // namespace tessera
