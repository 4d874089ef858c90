// What code that was written for a plain module finds in grad() after backward.
#include "client/torch/kept_gradient.h"

#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class KeptGradientTest : public TorchCluster {
 protected:
  // Runs `use` in a step's body, after backward, on one rank.
  static absl::Status StepWith(Trainer& trainer, const std::function<void(Net& net)>& use) {
    return trainer.model->RunStep([&] {
      LossOf(*trainer.net, trainer.model->next_step(), trainer.rank).backward();
      use(*trainer.net);
      return trainer.model->Step();
    });
  }
  void ExpectRefused(const std::function<void(Net& net)>& use,
                     const testing::Matcher<std::string>& message =
                         AllOf(HasSubstr("gradient of parameter '"), HasSubstr("ClipGradNorm"))) {
    OnEachRank(1, [&](Trainer& trainer) {
      EXPECT_THAT(StepWith(trainer, use), StatusIs(absl::StatusCode::kFailedPrecondition, message));
      EXPECT_OK(StepWith(trainer, [](Net&) {})) << "the next step";
    });
  }
};

TEST_F(KeptGradientTest, ClippingAndOptimizersOfTorchAreRefusedByName) {
  ExpectRefused([](Net& net) { torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0); });
  ExpectRefused([](Net& net) { torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0, 1.0); });
  ExpectRefused([](Net& net) { torch::nn::utils::clip_grad_value_(net.parameters(), 1.0); });
  ExpectRefused([](Net& net) { torch::optim::SGD(net.parameters(), 0.1).step(); });
  // libtorch 2 resets them, and 1 writes zeros.
  ExpectRefused([](Net& net) { torch::optim::SGD(net.parameters(), 0.1).zero_grad(); },
                AnyOf(HasSubstr("ClipGradNorm"), HasSubstr("was reset, but the job has")));
}

TEST_F(KeptGradientTest, WhatReadsOrWritesItIsRefusedByName) {
  ExpectRefused([](Net& net) { (void)net.out->bias.grad().item<float>(); });
  ExpectRefused([](Net& net) { (void)net.out->weight.grad().data_ptr<float>(); });
  ExpectRefused([](Net& net) { (void)net.out->weight.grad().accessor<float, 2>()[0][0]; });
  ExpectRefused([](Net& net) { (void)net.out->weight.grad().norm().item<float>(); });
  ExpectRefused([](Net& net) { (void)(net.out->weight.grad() * 2); });
  ExpectRefused([](Net& net) { (void)(net.out->weight - 0.1 * net.out->weight.grad()); });
  ExpectRefused([](Net& net) { (void)torch::cat({net.out->weight.grad().flatten()}); });
  ExpectRefused([](Net& net) { (void)net.out->weight.grad().clone(); });
  ExpectRefused([](Net& net) { (void)net.out->weight.grad().detach().cpu().sum().item<float>(); });
  ExpectRefused([](Net& net) { net.out->weight.mutable_grad().mul_(0.5); });
  ExpectRefused([](Net& net) { net.out->weight.mutable_grad() += 1; });
  ExpectRefused([](Net& net) { net.out->zero_grad(/*set_to_none=*/false); });  // A part of a unit.
}

TEST_F(KeptGradientTest, HasTheShapeOfTheParameterAndIsThereOnlyIfThereIsAGradient) {
  OnEachRank(1, [&](Trainer& trainer) {
    EXPECT_OK(StepWith(trainer, [](Net& net) {
      EXPECT_TRUE(net.out->weight.grad().defined());
      EXPECT_EQ(net.out->weight.grad().sizes(), net.out->weight.sizes());
      EXPECT_EQ(net.out->weight.grad().dtype(), net.out->weight.dtype());
      EXPECT_FALSE(net.unused.grad().defined());
      LossOf(net, 3, 0).backward();  // Adds.
    }));
    EXPECT_OK(trainer.model->RunStep([&] {
      EXPECT_FALSE(trainer.net->out->weight.grad().defined())
          << "each step's body starts without gradients";
      LossOf(*trainer.net, 3, 0).backward();
      trainer.net->zero_grad();
      EXPECT_FALSE(trainer.net->out->weight.grad().defined());
      EXPECT_FALSE(trainer.net->first->linear->weight.grad().defined());
      return absl::OkStatus();
    }));
  });
}

TEST_F(KeptGradientTest, ResettingItByHandDropsNothingAndIsRefusedByName) {
  OnEachRank(1, [&](Trainer& trainer) {
    const auto reset = [](Net& net) { net.second->linear->bias.mutable_grad().reset(); };
    EXPECT_THAT(StepWith(trainer, reset),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("'second.linear.bias'"), HasSubstr("zero_grad()"))));
    EXPECT_THAT(StepWith(trainer,
                         [&](Net& net) {
                           reset(net);
                           LossOf(net, 5, 0).backward();
                         }),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("second.linear.bias")));
    EXPECT_OK(StepWith(trainer, [](Net&) {}));
    reset(*trainer.net);  // After a step there is none.
    EXPECT_OK(StepWith(trainer, [](Net&) {}));
  });
}

TEST_F(KeptGradientTest, SummonWithGradientsShowsTheMeanInItsPlace) {
  OnEachRank(2, [&](Trainer& trainer) {
    SummonOptions options;
    options.writeback = false;
    options.with_grads = true;
    EXPECT_OK(StepWith(trainer, [&](Net& net) {
      const std::shared_ptr<Net> plain = MakeNet();
      for (int rank = 0; rank < 2; ++rank)
        (LossOf(*plain, trainer.model->next_step(), rank) / 2).backward();
      EXPECT_OK(trainer.model->SummonFullParams(options, [&] {
        EXPECT_TRUE(torch::allclose(net.out->weight.grad(), plain->out->weight.grad(), 1e-5, 1e-6));
        return absl::OkStatus();
      }));
      EXPECT_TRUE(IsKeptGradient(net.out->weight.grad())) << "as before";
    }));
  });
}

}  // namespace
}  // namespace tessera
