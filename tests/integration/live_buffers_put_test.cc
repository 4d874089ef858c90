// Buffers of modules that clients set in a job that trains, that successors continue from, and that
// a step which is done again begins from: through a real coordinator, workers and executors'
// processes.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/optimizer_state.h"
#include "tessera/torch/libtorch.h"
#include "tests/integration/live_buffers_fixture.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing_support::ReadFile;

// Whatever a rank's own were: after the step that takes the put its module has what was put, to the
// byte, and continues from there.
TEST_F(LiveBuffersTest, PutsSetThemInTheModulesOfAllRanksBetweenTwoSteps) {
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 3; ++i) ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      StoredValues values;
      EXPECT_EQ(Get({}, &values), 3);
      std::filesystem::rename(Path("get.safetensors"), Path("put.safetensors"));
      absl::MutexLock lock(&mu_);
      put_ = BuffersOf(*trainer.net);
    }
    for (int i = 0; i < 3; ++i) ASSERT_OK(Step(rank, &trainer));
    Meet();
    const StoredValues before = BuffersOf(*trainer.net);
    const StoredValues put = Put();
    for (const std::string name : {"seen", "table", "norm.running_mean"})
      ASSERT_FALSE(before.at(name) == put.at(name)) << name;
    CliResult result;
    std::thread putter;
    if (rank == 0) {
      putter = std::thread([&] {
        result = Tessera({"put", "--job", "toy", "--from", Path("put.safetensors"), "--json"});
        put_ended_.store(true);
      });
    }
    std::map<int64_t, StoredValues> after;
    while (!AllSee(rank, put_ended_)) {
      ASSERT_OK(Step(rank, &trainer));
      after[trainer.model->next_step() - 1] = BuffersOf(*trainer.net);
    }
    if (rank == 0) {
      putter.join();
      ASSERT_EQ(result.exit_code, 0) << result.err;
      trained_step_.store(nlohmann::json::parse(result.out)["step"]);
    }
    Meet();
    const int64_t step = trained_step_.load();
    ASSERT_EQ(after.count(step), 1u);
    ExpectBuffers(after[step], put);
    ASSERT_OK(Step(rank, &trainer));
    if (after.count(step + 1) == 0) after[step + 1] = BuffersOf(*trainer.net);
    int64_t seen, was;
    memcpy(&seen, after[step + 1].at("seen").second.data(), sizeof(seen));
    memcpy(&was, put.at("seen").second.data(), sizeof(was));
    EXPECT_EQ(seen, was + 4) << "rank " << rank;
    Meet();
    if (rank == 0) {
      StoredValues values;
      ExpectBuffers(values, At(Get({}, &values)));
    }
    Meet();
  });
}

TEST_F(LiveBuffersTest, PutOfABufferThatDoesNotFitIsRefusedByNameAndSetsNothing) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      StoredValues values;
      EXPECT_EQ(Get({"--include=seen"}, &values), 1);
      std::string file = ReadFile(Path("get.safetensors"));
      file.replace(file.find("\"I64\""), 5, "\"U64\"");
      std::ofstream(Path("put.safetensors"), std::ios::binary) << file;
      const CliResult dtype = Tessera({"put", "--job", "toy", "--from", Path("put.safetensors")});
      EXPECT_NE(dtype.exit_code, 0);
      EXPECT_THAT(dtype.err,
                  testing::AllOf(HasSubstr("buffer 'seen'"), HasSubstr("U64"), HasSubstr("I64")));
      const CliResult none =
          Tessera({"put", "--job", "toy", "--from", Path("put.safetensors"), "--no-buffers"});
      EXPECT_NE(none.exit_code, 0);
      EXPECT_THAT(none.err, HasSubstr("no tensor of the file is selected"));
    }
    Meet();
    ASSERT_OK(Step(rank, &trainer));
    EXPECT_EQ(trainer.net->seen.item<int64_t>(), 8);
  });
}

// Of each rank its own: they differ, since their inputs do.
TEST_F(LiveBuffersTest, TrainerThatTakesARankOverGoesOnFromItsPredecessorsBuffers) {
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 4; ++i) ASSERT_OK(Step(rank, &trainer));
    const StoredValues before = BuffersOf(*trainer.net);
    {
      absl::MutexLock lock(&mu_);
      by_rank_[rank] = before;
    }
    // For a step that is undone, and what its trainer does outside of steps.
    EXPECT_FALSE(trainer.model
                     ->RunStep([&]() -> absl::Status {
                       trainer.net->forward(torch::ones({4, 3})).sum().backward();
                       return absl::InternalError("not this one");
                     })
                     .ok());
    trainer.net->table += 1000;
    EXPECT_FALSE(BuffersOf(*trainer.net) == before);
    Meet();
    if (rank == 1) {
      EXPECT_NE(by_rank_[0].at("norm.running_mean"), before.at("norm.running_mean"));
    }
    trainer = Trainer();
    Meet();
    auto next = Attach(rank, {}, "toy");
    ASSERT_OK(next);
    EXPECT_EQ(next->model->next_step(), 5);
    ExpectBuffers(BuffersOf(*next->net), before);
    ASSERT_OK(Step(rank, &*next));
    EXPECT_EQ(next->net->seen.item<int64_t>(), 20);
    Meet();
  });
}

// An executor is killed once all ranks have been through backward: the step is done again, and
// statistics have seen its batch once.
TEST_F(LiveBuffersTest, StepThatIsDoneAgainBeginsFromTheBuffersThatItHad) {
  std::vector<StoredValues> undisturbed(kWorldSize), disturbed(kWorldSize);
  const auto train = [&](const std::string& job, bool disturb, std::vector<StoredValues>* ends) {
    OnEachRank(
        [&](int rank, Trainer& trainer) {
          for (int i = 1; i <= 6; ++i) {
            // Between two steps, which the step that is done again does not undo either.
            if (i == 3) trainer.net->table[0] = 77;
            if (i == 5) trainer.net->norm->running_mean += 0.5;
            int tries = 0;
            const auto in_body = [&]() -> absl::Status {
              if (!disturb || i % 2 == 0 || ++tries > 3) return absl::OkStatus();
              Meet();
              if (rank == 0) cluster_->KillExecutorForTest(job, 1);
              // Rank 0 asks for the step, which cannot be: rank 1 does not vote. Of the second try
              // nothing is said to rank 0's executor either.
              if (rank == 0 && tries != 2) return absl::OkStatus();
              absl::Status status;
              while (status.ok()) status = ReadProgress(&trainer.model->session()).status();
              return status;
            };
            ASSERT_OK(Step(rank, &trainer, in_body));
            if (disturb && i % 2 == 1) {
              EXPECT_EQ(tries, 4) << "step " << i;
            }
          }
          (*ends)[rank] = BuffersOf(*trainer.net);
        },
        {}, job);
  };
  train("undisturbed", false, &undisturbed);
  EXPECT_EQ(Tessera({"jobs", "delete", "undisturbed"}).exit_code, 0);
  train("disturbed", true, &disturbed);
  for (int rank = 0; rank < kWorldSize; ++rank) ExpectBuffers(disturbed[rank], undisturbed[rank]);
}

}  // namespace
}  // namespace tessera
