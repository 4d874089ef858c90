// Compares ShardedModel::ClipGradNorm with torch::nn::utils::clip_grad_norm_ of a plain module.

#include <cmath>
#include <limits>

#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "tessera/gradient_scaler.h"
#include "tessera/torch/shard_optimizer.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLarge = 50;  // So that clipping acts.

struct Clip {
  double max_norm, p;
};
// Of each step, others.
constexpr Clip kClips[] = {{0.5, 2}, {1.5, 1}, {0.25, kInfinity}, {0.75, 3}, {kInfinity, 2}};

class ClipGradNormTest : public TorchCluster {
 protected:
  struct Result {
    std::vector<double> norms;
    std::map<std::string, torch::Tensor> parameters;
  };
  // Of the mean over the ranks' losses.
  Result PlainRun(int world_size) {
    Result result;
    const std::shared_ptr<Net> net = MakeNet();
    torch::optim::SGD optimizer(net->parameters(), /*lr=*/0.5);
    int64_t step = 0;
    for (const Clip& clip : kClips) {
      ++step;
      for (int rank = 0; rank < world_size; ++rank)
        (LossOf(*net, step, rank) * kLarge / world_size).backward();
      result.norms.push_back(
          torch::nn::utils::clip_grad_norm_(net->parameters(), clip.max_norm, clip.p));
      optimizer.step();
      for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
    }
    result.parameters = CopyOf(*net);
    return result;
  }
  using Step = std::function<absl::Status()>;
  // Of losses that are multiplied by `scale`, and steps of `scaled`; or what `make_step` makes for
  // each rank.
  void ExpectAsPlain(int world_size, double scale, const StepOptions& scaled,
                     const std::function<Step(Trainer&)>& make_step = nullptr) {
    const Result expected = PlainRun(world_size);
    OnEachRank(world_size, [&](Trainer& trainer) {
      const Step step = make_step ? make_step(trainer) : [&trainer, &scaled] {
        return trainer.model->StepWithResult(scaled).status();
      };
      for (size_t i = 0; i < std::size(kClips); ++i) {
        ASSERT_OK(trainer.model->RunStep([&]() -> absl::Status {
          (LossOf(*trainer.net, i + 1, trainer.rank) * kLarge * scale).backward();
          const auto norm = trainer.model->ClipGradNorm(kClips[i].max_norm, kClips[i].p, scaled);
          if (!norm.ok()) return norm.status();
          EXPECT_NEAR(*norm, expected.norms[i], 2e-5 * expected.norms[i]) << "step " << i + 1;
          return step();
        }));
      }
      for (const auto& [name, values] : WholeParameters(trainer)) {
        EXPECT_TRUE(torch::allclose(values, expected.parameters.at(name), 1e-4, 1e-5)) << name;
      }
    });
  }
};

TEST_F(ClipGradNormTest, ClipsAndReturnsTheNormAsTorchDoesWithAnotherNormEachStep) {
  for (const int world_size : {1, 2, 3}) {
    ASSERT_NO_FATAL_FAILURE(SetUp());
    ExpectAsPlain(world_size, 1, {});
  }
}

TEST_F(ClipGradNormTest, MeasuresBehindTheDivisionsThatTheStepMakes) {
  StepOptions scaled;
  scaled.gradient_divisor = 1024;
  ExpectAsPlain(2, 1024, scaled);
}

TEST_F(ClipGradNormTest, OptimizerOfTorchGetsTheClippedGradient) {
  ExpectAsPlain(2, 1, {}, [](Trainer& trainer) -> Step {
    auto made = ShardOptimizer::Create(trainer.model.get(), [](const auto& shards) {
      return std::make_unique<torch::optim::SGD>(TensorsOf(shards), /*lr=*/0.5);
    });
    EXPECT_OK(made);
    const std::shared_ptr<ShardOptimizer> optimizer = *std::move(made);
    return [optimizer] { return optimizer->Step({}).status(); };
  });
}

TEST_F(ClipGradNormTest, AgainItMeasuresWhatIsClipped) {
  OnEachRank(2, [](Trainer& trainer) {
    ASSERT_OK(trainer.model->RunStep([&]() -> absl::Status {
      (LossOf(*trainer.net, 1, trainer.rank) * kLarge).backward();
      EXPECT_OK(trainer.model->ClipGradNorm(0.5));
      const auto norm = trainer.model->ClipGradNorm(kInfinity);
      if (!norm.ok()) return norm.status();
      EXPECT_NEAR(*norm, 0.5, 1e-5);
      return trainer.model->Step();
    }));
  });
}

TEST_F(ClipGradNormTest, GradientsBehindItAndNumbersThatRanksGiveDifferentlyAreRefused) {
  OnEachRank(2, [](Trainer& trainer) {
    const auto step_with = [&](const std::function<absl::Status()>& clip) {
      return trainer.model->RunStep([&]() -> absl::Status {
        LossOf(*trainer.net, 1, trainer.rank).backward();
        const absl::Status status = clip();
        return status.ok() ? trainer.model->Step() : status;
      });
    };
    EXPECT_THAT(step_with([&] {
                  EXPECT_OK(trainer.model->ClipGradNorm(1));
                  LossOf(*trainer.net, 2, trainer.rank).backward();
                  return absl::OkStatus();
                }),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("last backward")));
    EXPECT_THAT(
        step_with([&] { return trainer.model->ClipGradNorm(1 + trainer.rank).status(); }),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("how the gradient is clip")));
    EXPECT_THAT(step_with([&] { return trainer.model->ClipGradNorm(0).status(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_norm 0")));
    EXPECT_THAT(step_with([&] { return trainer.model->ClipGradNorm(1, -2).status(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("p -2")));
    EXPECT_OK(step_with([&] { return trainer.model->ClipGradNorm(1).status(); }));
  });
}

// The clip ends with the gradients that it was of.
TEST_F(ClipGradNormTest, WhatIsDroppedBehindItLeavesNothing) {
  OnEachRank(2, [](Trainer& trainer) {
    const auto backward = [&](double factor) {
      (LossOf(*trainer.net, 1, trainer.rank) * factor).backward();
    };
    EXPECT_OK(trainer.model->RunStep([&] {
      backward(1);
      EXPECT_OK(trainer.model->ClipGradNorm(1));
      trainer.net->zero_grad();
      backward(1);
      return trainer.model->Step();
    }));
    StepOptions skip;
    skip.skip_non_finite = true;
    EXPECT_OK(trainer.model->RunStep([&] {  // Without a step.
      backward(kInfinity);
      EXPECT_OK(trainer.model->ClipGradNorm(1, 2, skip));
      return absl::OkStatus();
    }));
    EXPECT_OK(trainer.model->RunStep([&] {
      EXPECT_OK(trainer.model->ClipGradNorm(1));  // Without gradients.
      return absl::OkStatus();
    }));
    EXPECT_OK(trainer.model->RunStep([&] {
      backward(1);
      return trainer.model->Step();
    }));
    EXPECT_EQ(trainer.model->next_step(), 3);
  });
}

TEST_F(ClipGradNormTest, GradientThatTheUserSetIsClippedToo) {
  OnEachRank(2, [](Trainer& trainer) {
    StepResult result;
    EXPECT_OK(trainer.model->RunStep([&]() -> absl::Status {
      LossOf(*trainer.net, 1, trainer.rank).backward();
      for (torch::Tensor& parameter : trainer.net->parameters())
        parameter.mutable_grad() = torch::zeros_like(parameter);
      trainer.net->out->bias.mutable_grad() = torch::full({1}, 4.0);
      const auto norm = trainer.model->ClipGradNorm(0.5);
      EXPECT_NEAR(norm.value_or(0), 4, 1e-6);
      const auto stepped = trainer.model->StepWithResult();
      if (stepped.ok()) result = *stepped;
      return stepped.status();
    }));
    EXPECT_NEAR(result.gradient_norm, 0.5, 1e-5);
  });
}

TEST_F(ClipGradNormTest, NormBeyondADoubleIsAnError) {
  OnEachRank(1, [](Trainer& trainer) {
    EXPECT_THAT(trainer.model->RunStep([&] {
      (LossOf(*trainer.net, 1, trainer.rank) * 1e6).backward();
      return trainer.model->ClipGradNorm(1, 700).status();
    }),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("norm by p = 700")));
    EXPECT_OK(trainer.model->RunStep([&] {
      LossOf(*trainer.net, 1, trainer.rank).backward();
      return trainer.model->Step();
    }));
  });
}

TEST_F(ClipGradNormTest, OverflowIsAnErrorOrSkipsTheStep) {
  OnEachRank(2, [](Trainer& trainer) {
    const auto step_with = [&](const StepOptions& options, bool* skipped) {
      return trainer.model->RunStep([&]() -> absl::Status {
        const double factor = trainer.rank == 1 ? kInfinity : 1;
        (LossOf(*trainer.net, 1, trainer.rank) * factor).backward();
        const auto norm = trainer.model->ClipGradNorm(1, 2, options);
        if (!norm.ok()) return norm.status();
        EXPECT_TRUE(std::isnan(*norm));
        const auto result = trainer.model->StepWithResult(options);
        if (result.ok()) *skipped = result->skipped;
        return result.status();
      });
    };
    bool skipped = false;
    EXPECT_THAT(step_with({}, &skipped),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("NaN or Inf")));
    GradientScaler scaler;
    EXPECT_OK(step_with(scaler.Scaled({}), &skipped));
    EXPECT_TRUE(skipped);
    EXPECT_EQ(trainer.model->next_step(), 1);
    ASSERT_OK(trainer.model->RunStep([&] {
      LossOf(*trainer.net, 1, trainer.rank).backward();
      return trainer.model->Step();
    }));
    EXPECT_EQ(trainer.model->next_step(), 2);
  });
}

}  // namespace
}  // namespace tessera
