// Checkpoints of modules that trainers' own optimizers train, through a real cluster.
#include <filesystem>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cli/cli.h"
#include "client/torch/torch_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/torch/model_checkpoint.h"
#include "tessera/torch/optim_state_dicts.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class ShardCheckpointTest : public TorchCluster {
 protected:
  static std::string Path() {
    return absl::StrCat(testing::TempDir(), "/",
                        testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  static std::unique_ptr<ShardOptimizer> MakeAdamW(Trainer& trainer, bool amsgrad = false) {
    auto own =
        ShardOptimizer::Create(trainer.model.get(), [&](const std::vector<ShardTensor>& shards) {
          return std::make_unique<torch::optim::AdamW>(
              TensorsOf(shards), torch::optim::AdamWOptions(0.01).amsgrad(amsgrad));
        });
    EXPECT_OK(own);
    return *std::move(own);
  }
  static std::unique_ptr<ShardOptimizer> MakeAdamWInTwoGroups(Trainer& trainer) {
    auto own =
        ShardOptimizer::Create(trainer.model.get(), [](const std::vector<ShardTensor>& shards) {
          std::vector<torch::Tensor> groups[2];
          for (size_t i = 0; i < shards.size(); ++i) groups[1 - i % 2].push_back(shards[i].tensor);
          const torch::optim::AdamWOptions options(0.01);
          auto optimizer = std::make_unique<torch::optim::AdamW>(groups[0], options);
          optimizer->add_param_group(torch::optim::OptimizerParamGroup(
              groups[1], std::make_unique<torch::optim::AdamWOptions>(options)));
          return optimizer;
        });
    EXPECT_OK(own);
    return *std::move(own);
  }
  static std::unique_ptr<ShardOptimizer> MakeSgd(Trainer& trainer) {
    auto own =
        ShardOptimizer::Create(trainer.model.get(), [](const std::vector<ShardTensor>& shards) {
          return std::make_unique<torch::optim::SGD>(TensorsOf(shards),
                                                     torch::optim::SGDOptions(0.01).momentum(0.9));
        });
    EXPECT_OK(own);
    return *std::move(own);
  }
  static void TrainTo(Trainer& trainer, ShardOptimizer* own, int64_t last_step) {
    while (trainer.model->next_step() <= last_step) {
      ASSERT_OK(trainer.model->RunStep([&] {
        LossOf(*trainer.net, trainer.model->next_step(), trainer.rank).backward();
        return own->Step().status();
      }));
    }
  }
  static std::function<void(SessionOptions*)> Named(const char* job,
                                                    OptimizerKind kind = OptimizerKind::kAdamW) {
    return [job, kind](SessionOptions* options) {
      options->job_id = job;
      options->config.optimizer = kind;
    };
  }
  static void ExpectEqual(const std::map<std::string, torch::Tensor>& a,
                          const std::map<std::string, torch::Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, value] : a) EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
  }
  static void ExpectEqualState(const OptimStateDict& a, const OptimStateDict& b) {
    ASSERT_EQ(a.state.size(), b.state.size());
    for (const auto& item : a.state) {
      ASSERT_TRUE(b.state.contains(item.key()));
      const OptimParamState& other = b.state[item.key()];
      EXPECT_EQ(item.value().step, other.step) << item.key();
      ASSERT_EQ(item.value().moments.size(), other.moments.size()) << item.key();
      for (const auto& [moment, entry] : item.value().moments)
        EXPECT_TRUE(torch::equal(entry.tensor, other.moments.at(moment).tensor)) << item.key();
    }
  }
};

TEST_F(ShardCheckpointTest, RunThatIsInterruptedGivesTheBitsOfOneThatIsNot) {
  for (const bool sgd : {false, true}) {
    const OptimizerKind kind = sgd ? OptimizerKind::kSgd : OptimizerKind::kAdamW;
    const auto make = [&](Trainer& trainer) { return sgd ? MakeSgd(trainer) : MakeAdamW(trainer); };
    const std::string path = absl::StrCat(Path(), sgd ? "-sgd" : "-adamw");
    std::map<std::string, torch::Tensor> expected;
    OnEachRank(
        2,
        [&](Trainer& trainer) {
          const auto own = make(trainer);
          TrainTo(trainer, own.get(), 2);
          ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), own.get(), path));
          TrainTo(trainer, own.get(), 5);
          const auto whole = WholeParameters(trainer);
          if (trainer.rank == 0) expected = whole;
        },
        Named(sgd ? "first-sgd" : "first", kind));
    OnEachRank(
        2,
        [&](Trainer& trainer) {
          const auto own = make(trainer);
          TrainTo(trainer, own.get(), 1);  // What it remembers of that is replaced.
          ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), own.get(), path).status());
          EXPECT_EQ(trainer.model->next_step(), 3);
          TrainTo(trainer, own.get(), 5);
          ExpectEqual(WholeParameters(trainer), expected);
        },
        Named(sgd ? "resumed-sgd" : "resumed", kind));
  }
}

// Groups have the parameters in whatever order.
TEST_F(ShardCheckpointTest, JobOfAnotherSizeGoesOnWithWhatTheOptimizersRemember) {
  OptimStateDict saved;
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        const auto own = MakeAdamW(trainer);
        TrainTo(trainer, own.get(), 3);
        ASSERT_OK_AND_ASSIGN(const OptimStateDict dict,
                             GatherOptimState(trainer.model.get(), own.get()));
        if (trainer.rank == 0) saved = dict;
        SaveOptions options;
        options.in_background = true;
        ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), own.get(), Path(), "", options));
        ASSERT_OK(AwaitSave(&trainer.model->session()));
      },
      Named("two"));
  EXPECT_FALSE(saved.state.contains("unused")) << "it was never updated";
  EXPECT_GT(saved.state.size(), 4u);
  OnEachRank(
      3,
      [&](Trainer& trainer) {
        const auto own = MakeAdamWInTwoGroups(trainer);
        ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), own.get(), Path()).status());
        ASSERT_OK_AND_ASSIGN(const OptimStateDict loaded,
                             GatherOptimState(trainer.model.get(), own.get()));
        ExpectEqualState(loaded, saved);
        EXPECT_NE(ParamsOf(loaded), ParamsOf(saved));
        TrainTo(trainer, own.get(), 4);
      },
      Named("three"));
}

// The job's own optimizer would continue from it as well.
TEST_F(ShardCheckpointTest, OneThatIsAskedForFromOutsideHasWhatTheOptimizersRemember) {
  std::vector<OptimStateDict> by_step(4);
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        const auto own = MakeAdamW(trainer);
        OnModelSaveRequest(trainer.model.get(), own.get(),
                           [](int64_t step) { return absl::StrCat("after step ", step); });
        if (trainer.rank ==
            0) {  // Before the first step, which asks the coordinator for its order.
          std::ostringstream out, err;
          EXPECT_EQ(cli::RunCli({"save", "--job", "asked", "--to", Path(), "--no-wait",
                                 "--coordinator", cluster_->coordinator_address()},
                                {&out, &err, false}),
                    0)
              << err.str();
        }
        for (int64_t step = 1; step <= 3; ++step) {
          TrainTo(trainer, own.get(), step);
          ASSERT_OK_AND_ASSIGN(const OptimStateDict dict,
                               GatherOptimState(trainer.model.get(), own.get()));
          if (trainer.rank == 0) by_step[step] = dict;
        }
        ASSERT_OK(AwaitSave(&trainer.model->session()));
      },
      Named("asked"));
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        const auto own = MakeAdamW(trainer);
        ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded,
                             LoadModelCheckpoint(trainer.model.get(), own.get(), Path()));
        EXPECT_EQ(loaded.step, 1);
        EXPECT_EQ(loaded.trainer_state, "after step 1");
        ASSERT_OK_AND_ASSIGN(const OptimStateDict dict,
                             GatherOptimState(trainer.model.get(), own.get()));
        ExpectEqualState(dict, by_step[1]);
      },
      Named("reader"));
}

TEST_F(ShardCheckpointTest, WhatTheJobHasNoPlaceForIsRefusedByNameAndNothingIsSaved) {
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        {
          const auto own = MakeSgd(trainer);
          TrainTo(trainer, own.get(), 1);
          EXPECT_THAT(SaveModelCheckpoint(trainer.model.get(), own.get(), Path()),
                      StatusIs(absl::StatusCode::kInvalidArgument,
                               testing::AllOf(HasSubstr("config.optimizer"),
                                              HasSubstr("'momentum_buffer'"))));
        }
        const auto own = MakeAdamW(trainer, /*amsgrad=*/true);
        TrainTo(trainer, own.get(), 2);
        EXPECT_THAT(SaveModelCheckpoint(trainer.model.get(), own.get(), Path()),
                    StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("amsgrad")));
        EXPECT_THAT(TakeOptimState(trainer.model.get(), own.get()),
                    StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("amsgrad")));
        EXPECT_FALSE(std::filesystem::exists(Path()));
        TrainTo(trainer, own.get(), 3);
      },
      Named("refused"));
}

// What a step that is undone left in an optimizer is not stored.
TEST_F(ShardCheckpointTest, OfAStepThatFailedWhatIsStoredIsWhatItWasBefore) {
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        const auto own = MakeAdamW(trainer);
        TrainTo(trainer, own.get(), 2);
        ASSERT_OK_AND_ASSIGN(const OptimStateDict before,
                             GatherOptimState(trainer.model.get(), own.get()));
        EXPECT_FALSE(trainer.model
                         ->RunStep([&]() -> absl::Status {
                           LossOf(*trainer.net, 3, trainer.rank).backward();
                           if (trainer.rank == 1) return absl::ResourceExhaustedError("no more");
                           return own->Step().status();
                         })
                         .ok());
        ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), own.get(), Path()));
        TrainTo(trainer, own.get(), 4);
        ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), own.get(), Path()).status());
        EXPECT_EQ(trainer.model->next_step(), 3);
        ASSERT_OK_AND_ASSIGN(const OptimStateDict after,
                             GatherOptimState(trainer.model.get(), own.get()));
        ExpectEqualState(after, before);
      },
      Named("undone"));
}

}  // namespace
}  // namespace tessera
