// Checkpoints of attached modules, through a real cluster.
#include "tessera/torch/model_checkpoint.h"

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cli/cli.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class ModelCheckpointTest : public TorchCluster {
 protected:
  static std::string Path() {
    return absl::StrCat(testing::TempDir(), "/",
                        testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  static void TrainTo(Trainer& trainer, int64_t last_step) {
    while (trainer.model->next_step() <= last_step) {
      ASSERT_OK(trainer.model->RunStep([&] {
        LossOf(*trainer.net, trainer.model->next_step(), trainer.rank).backward();
        return trainer.model->Step();
      }));
    }
  }
  static void ExpectEqual(const std::map<std::string, torch::Tensor>& a,
                          const std::map<std::string, torch::Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, value] : a) EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
  }
};

TEST_F(ModelCheckpointTest, JobOfAnotherSizeGoesOnWithParametersBuffersAndTrainersBytes) {
  std::map<std::string, torch::Tensor> saved, trained_on;
  OnEachRank(2, [&](Trainer& trainer) {
    TrainTo(trainer, 1);
    trainer.net->first->shift.fill_(0.5 + trainer.rank);
    TrainTo(trainer, 3);
    SaveOptions options;
    options.in_background = true;
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path(), absl::StrCat("rank ", trainer.rank),
                                  options));
    const auto whole = WholeParameters(trainer);
    ASSERT_OK(AwaitSave(&trainer.model->session()));
    if (trainer.rank == 0) saved = whole;
  });
  OnEachRank(
      3,
      [&](Trainer& trainer) {
        EXPECT_EQ(trainer.net->first->shift.min().item<float>(), 0.25);
        ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded,
                             LoadModelCheckpoint(trainer.model.get(), Path()));
        EXPECT_EQ(loaded.saved_world_size, 2);
        EXPECT_EQ(loaded.trainer_state, absl::StrCat("rank ", trainer.rank < 2 ? trainer.rank : 0));
        EXPECT_EQ(trainer.model->next_step(), 4);
        EXPECT_EQ(trainer.net->first->shift.min().item<float>(), 0.5) << "rank 0's";
        EXPECT_EQ(trainer.net->second->shift.min().item<float>(), 0.25);
        ExpectEqual(WholeParameters(trainer), saved);
        TrainTo(trainer, 5);
      },
      [](SessionOptions* options) { options->job_id = "wider"; });
}

TEST_F(ModelCheckpointTest, RunThatIsInterruptedGivesTheBitsOfOneThatIsNot) {
  std::map<std::string, torch::Tensor> expected;
  OnEachRank(2, [&](Trainer& trainer) {
    TrainTo(trainer, 2);
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path()));
    TrainTo(trainer, 5);
    const auto whole = WholeParameters(trainer);
    if (trainer.rank == 0) expected = whole;
  });
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), Path()).status());
        TrainTo(trainer, 5);
        ExpectEqual(WholeParameters(trainer), expected);
      },
      [](SessionOptions* options) { options->job_id = "resumed"; });
}

TEST_F(ModelCheckpointTest, OneThatIsAskedForFromOutsideHasBuffersAndTrainersBytes) {
  const auto named = [](const char* job) {
    return [job](SessionOptions* options) { options->job_id = job; };
  };
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        trainer.net->first->shift.fill_(0.5 + trainer.rank);
        OnModelSaveRequest(trainer.model.get(), [rank = trainer.rank](int64_t step) {
          return absl::StrCat("rank ", rank, " after step ", step);
        });
        if (trainer.rank ==
            0) {  // Before the first step, which asks the coordinator for its order.
          std::ostringstream out, err;
          EXPECT_EQ(cli::RunCli({"save", "--job", "asked", "--to", Path(), "--no-wait",
                                 "--coordinator", cluster_->coordinator_address()},
                                {&out, &err, false}),
                    0)
              << err.str();
        }
        TrainTo(trainer, 3);
        ASSERT_OK(AwaitSave(&trainer.model->session()));
      },
      named("asked"));
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded,
                             LoadModelCheckpoint(trainer.model.get(), Path()));
        EXPECT_EQ(loaded.step, 1);
        EXPECT_EQ(loaded.trainer_state, absl::StrCat("rank ", trainer.rank, " after step 1"));
        EXPECT_EQ(trainer.net->first->shift.min().item<float>(), 0.5) << "rank 0's";
      },
      named("reader"));
}

TEST_F(ModelCheckpointTest, PartOfItIsLoadedIntoAModelThatTrainedOn) {
  OnEachRank(2, [&](Trainer& trainer) {
    TrainTo(trainer, 1);
    const auto saved = WholeParameters(trainer);
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path()));
    TrainTo(trainer, 3);
    const auto trained = WholeParameters(trainer);
    LoadModelCheckpointOptions options;
    options.names.include = {"first.*"};
    ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), Path(), options).status());
    EXPECT_EQ(trainer.model->next_step(), 4);
    for (const auto& [name, value] : WholeParameters(trainer)) {
      const bool loaded = name.rfind("first.", 0) == 0;
      EXPECT_TRUE(torch::equal(value, (loaded ? saved : trained).at(name))) << name;
    }
  });
}

TEST_F(ModelCheckpointTest, BoolsAndSmallIntegersComeBackToTheBit) {
  const std::vector<std::pair<std::string, torch::Tensor>> buffers = {
      {"mask", torch::tensor({1, 0, 1, 1, 0}).to(torch::kBool)},
      {"int8", torch::tensor({-128, -1, 0, 127}).to(torch::kChar)},
      {"uint8", torch::tensor({0, 1, 255}).to(torch::kByte)},
      {"int16", torch::tensor({-32768, 32767}).to(torch::kShort)},
      {"complex", torch::complex(torch::tensor({1.5f}), torch::tensor({-0.0f}))}};
  OnEachRank(2, [&](Trainer& trainer) {
    for (const auto& [name, values] : buffers) trainer.net->register_buffer(name, values.clone());
    TrainTo(trainer, 1);
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path()));
    for (const auto& [name, values] : buffers) trainer.net->named_buffers()[name].zero_();
    ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), Path()).status());
    for (const auto& [name, values] : buffers)
      EXPECT_TRUE(torch::equal(trainer.net->named_buffers()[name], values)) << name;
  });
}

TEST_F(ModelCheckpointTest, IsRefusedWithinAStepAndForDTypesThatFilesDoNotHave) {
  OnEachRank(1, [&](Trainer& trainer) {
    EXPECT_THAT(trainer.model->RunStep([&]() -> absl::Status {
      EXPECT_THAT(LoadModelCheckpoint(trainer.model.get(), Path()).status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within RunStep")));
      return SaveModelCheckpoint(trainer.model.get(), Path());
    }),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within RunStep")));
    trainer.net->register_buffer("flags", torch::zeros({2}, torch::kComplexDouble));
    EXPECT_THAT(
        SaveModelCheckpoint(trainer.model.get(), Path()),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("buffer 'flags' is ComplexDouble")));
  });
}

}  // namespace
}  // namespace tessera
