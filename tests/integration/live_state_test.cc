// The state of jobs that train, read by clients: through a real coordinator, workers and executors
// (threads), with trainers that continue meanwhile.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ReadStored;
using testing_support::RunTessera;
using testing_support::StoredValues;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

struct Case {
  std::string name;
  int num_workers = 1, num_devices = 1;  // Of each.
  int world_size = 1;
  Strategy strategy = Strategy::kFullShard;
  int group_size = 0;
  bool optimizer_in_backward = false;
};

std::unique_ptr<LocalCluster> StartCluster(const Case& c) {
  LocalCluster::Options options;
  options.num_workers = c.num_workers;
  options.num_devices = c.num_devices;
  auto cluster = LocalCluster::Start(options);
  EXPECT_OK(cluster);
  return *std::move(cluster);
}

absl::StatusOr<TrainerTeam> OpenTeam(const LocalCluster& cluster, const Case& c) {
  SessionOptions options = ToyOptions(cluster, "toy", c.world_size);
  options.model = ToyModel(3, /*with_frozen=*/true);
  options.config.strategy = c.strategy;
  options.config.shard_group_size = c.group_size;
  options.config.optimizer_in_backward = c.optimizer_in_backward;
  options.config.max_gradient_norm = c.optimizer_in_backward ? 0.0 : 0.5;
  std::vector<std::string> workers;
  for (int rank = 0; rank < c.world_size; ++rank)
    workers.push_back(cluster.worker_address(rank / c.num_devices));
  return TrainerTeam::Open(options, workers);
}

CliResult Cli(const LocalCluster& cluster, std::vector<std::string> args) {
  return RunTessera(cluster.coordinator_address(), std::move(args));
}

std::vector<float> ReadFromRankZero(TrainerTeam* team) {
  std::vector<float> values;
  EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
    auto all = ReadAll(session);
    if (session->rank() == 0 && all.ok()) values = *all;
    return all.status();
  }));
  return values;
}

class LiveStateTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/live-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // Reads the job and notes what it was at which step.
  absl::Status GetOnce(const LocalCluster& cluster, std::map<int64_t, StoredValues>* read) {
    const std::string path = Path("get.safetensors");
    std::vector<std::string> args = {"get", "toy", "--optimizer", "--json", "--out", path};
    if (++num_gets_ % 2 == 0) args.push_back("--through-coordinator");
    const CliResult result = Cli(cluster, args);
    if (result.exit_code != 0) return absl::UnavailableError(result.err);
    const int64_t step = nlohmann::json::parse(result.out)["step"];
    StoredValues tensors = ReadStored(path);
    const auto [it, is_new] = read->emplace(step, tensors);
    EXPECT_EQ(it->second, tensors) << "step " << step << " was another one before";
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
    return absl::OkStatus();
  }

  // Trains an undisturbed job like the other one; it must have been through all that was read, and
  // end like it.
  void ExpectSteps(const Case& c, const std::map<int64_t, StoredValues>& read, int64_t last_step,
                   const std::vector<float>& last) {
    const auto cluster = StartCluster(c);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
    for (const auto& [step, tensors] : read) {
      ASSERT_OK(team.TrainTo(step));
      const std::string path = Path(absl::StrCat("step-", step));
      ASSERT_OK(team.RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));
      EXPECT_TRUE(ReadStored(path) == tensors) << "at step " << step;
    }
    ASSERT_OK(team.TrainTo(last_step));
    EXPECT_EQ(ReadFromRankZero(&team), last);
  }

  std::string folder_;
  int num_gets_ = 0;  // By turns from the workers and through the coordinator.
};

// Trainers that continue, step by step, until they are told to stop.
class Training {
 public:
  explicit Training(TrainerTeam* team) : team_(team) {
    EXPECT_OK(team_->TrainTo(1));
    thread_ = std::thread([this] {
      while (!stop_.load() && status_.ok()) {
        status_ = team_->TrainTo(step_.load() + 1);
        step_.fetch_add(1);
      }
      ended_.store(true);
    });
  }
  // Waits until so many more steps were taken.
  void AwaitSteps(int64_t count) {
    const int64_t until = step_.load() + count;
    while (step_.load() < until && !ended_.load()) std::this_thread::yield();
  }
  // The last step.
  int64_t Stop() {
    stop_.store(true);
    thread_.join();
    EXPECT_OK(status_);
    return step_.load();
  }

 private:
  TrainerTeam* const team_;
  std::atomic<int64_t> step_{1};
  std::atomic<bool> stop_{false}, ended_{false};
  absl::Status status_;
  std::thread thread_;
};

TEST_P(LiveStateTest, EachReadingIsTheStateOfAStepAndTrainingIsThatOfAnUndisturbedRun) {
  std::map<int64_t, StoredValues> read;
  int64_t last_step = 0;
  std::vector<float> last;
  {
    const auto cluster = StartCluster(GetParam());
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
    Training training(&team);
    for (int i = 0; i < 6; ++i) {
      EXPECT_OK(GetOnce(*cluster, &read));
      training.AwaitSteps(2);
    }
    last_step = training.Stop();
    last = ReadFromRankZero(&team);
  }
  EXPECT_GE(read.size(), 4u);
  ExpectSteps(GetParam(), read, last_step, last);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, LiveStateTest,
    testing::Values(Case{"OneRank", 1, 1, 1}, Case{"TwoRanks", 1, 2, 2},
                    Case{"ThreeRanks", 1, 3, 3}, Case{"NoShard", 1, 2, 2, Strategy::kNoShard},
                    Case{"InBackward", 1, 2, 2, Strategy::kFullShard, 0, true},
                    Case{"TwoWorkers", 2, 2, 3}, Case{"TwoWorkersOfOne", 2, 1, 2},
                    Case{"Hybrid", 2, 2, 4, Strategy::kHybridShard, 2},
                    Case{"TwoWorkersInBackward", 2, 1, 2, Strategy::kFullShard, 0, true}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

using LiveStateOfOneTest = LiveStateTest;

TEST_F(LiveStateOfOneTest, ReadingsWhileExecutorsAreKilledAreOfStepsOrErrorsAndTrainingGoesOn) {
  const Case c = {"", 1, 2, 2};
  std::map<int64_t, StoredValues> read;
  int64_t last_step = 0;
  std::vector<float> last;
  {
    const auto cluster = StartCluster(c);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
    Training training(&team);
    std::atomic<bool> done{false};
    std::thread killer([&] {
      for (int i = 0; i < 4; ++i) {
        cluster->KillExecutorForTest("toy", i % 2);
        training.AwaitSteps(3);
      }
      done.store(true);
    });
    int readings = 0;
    while (!done.load() || readings == 0) {
      const absl::Status status = GetOnce(*cluster, &read);
      if (status.ok()) {
        ++readings;
      } else {
        EXPECT_THAT(std::string(status.message()), HasSubstr("UNAVAILABLE: "));
      }
    }
    killer.join();
    last_step = training.Stop();
    last = ReadFromRankZero(&team);
  }
  ExpectSteps(c, read, last_step, last);
}

TEST_F(LiveStateOfOneTest, IdleJobIsReadInFullDTypes) {
  const auto cluster = StartCluster({"", 1, 2, 2});
  SessionOptions options = ToyOptions(*cluster, "toy", 2);
  options.model = {{{"root", {{"a", {5}, DType::kFp32}, {"empty", {0}, DType::kFp32}}},
                    {"wide", {{"b", {7, 3}, DType::kFp64}}},
                    {"tied", {{"c", {9}, DType::kFp32}, {"too", {9}, DType::kFp32, true, "c"}}}}};
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(session->Initialize([](int unit, int, Values values) {
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = 1.0 / (3.0 + unit + static_cast<double>(i));
        if (values.dtype() == DType::kFp64) {
          values.as<double>()[i] = value;
        } else {
          values.as<float>()[i] = static_cast<float>(value);
        }
      }
    }));
    return SaveCheckpoint(session, Path("saved"));
  }));
  const std::string path = Path("get.safetensors");
  const CliResult got = Cli(*cluster, {"get", "toy", "--out", path});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("step 0 of job 'toy', 4 tensors"));
  EXPECT_EQ(ReadStored(path), ReadStored(Path("saved")));

  // Rounded on the way; and only some of it, whichever of its names says so.
  const CliResult halves = Cli(*cluster, {"get", "toy", "--out", path, "--dtype", "bf16"});
  EXPECT_EQ(halves.exit_code, 0) << halves.err;
  const StoredValues rounded = ReadStored(path), full = ReadStored(Path("saved"));
  for (const auto& [name, tensor] : full) {
    std::vector<uint16_t> expected(tensor.second.size() / (tensor.first == "F64" ? 8 : 4));
    const int64_t count = static_cast<int64_t>(expected.size());
    if (tensor.first == "F64") {
      host::CastFp64ToHalf(DType::kBf16, reinterpret_cast<const double*>(tensor.second.data()),
                           expected.data(), count);
    } else {
      host::CastFp32ToHalf(DType::kBf16, reinterpret_cast<const float*>(tensor.second.data()),
                           expected.data(), count);
    }
    EXPECT_EQ(rounded.at(name).first, "BF16");
    EXPECT_EQ(rounded.at(name).second,
              std::string(reinterpret_cast<const char*>(expected.data()), count * 2));
  }
  const CliResult some = Cli(*cluster, {"get", "toy", "--out", path, "--include", "t*", "--include",
                                        "?", "--exclude", "a"});
  EXPECT_EQ(some.exit_code, 0) << some.err;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : ReadStored(path)) names.push_back(name);
  EXPECT_THAT(names, testing::ElementsAre("b", "c"));
  const CliResult list = Cli(*cluster, {"ls", "--job", "toy", "--match", "*b*"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, AllOf(HasSubstr("state.b.exp_avg"), HasSubstr("F64"), HasSubstr("[7, 3]"),
                              HasSubstr("all: 3 tensors")));
  const CliResult equal = Cli(*cluster, {"diff", "--job", "toy", Path("saved")});
  EXPECT_EQ(equal.exit_code, 0) << equal.err;
  EXPECT_EQ(equal.out, "equal: 4 of 4\n");
  const CliResult differs = Cli(*cluster, {"diff", "--job", "toy", path});
  EXPECT_THAT(differs.err, HasSubstr("job 'toy' and"));
  EXPECT_THAT(differs.out, HasSubstr("different: 2 of 4"));
  EXPECT_NE(Cli(*cluster, {"ls", "--job", "toy", path}).exit_code, 0);
  EXPECT_THAT(Cli(*cluster, {"get", "toy", "--out", path, "--dtype", "fp64"}).err,
              HasSubstr("INVALID_ARGUMENT: coordinator"));
  EXPECT_THAT(Cli(*cluster, {"get", "toy", "--out", path, "--include", "x"}).err,
              HasSubstr("no parameter's name matches"));
}

TEST_F(LiveStateOfOneTest, WhatHasNoStateIsAnErrorByName) {
  const auto cluster = StartCluster({"", 1, 1, 1});
  const std::string path = Path("get.safetensors");
  EXPECT_THAT(Cli(*cluster, {"get", "toy", "--out", path}).err, HasSubstr("NOT_FOUND"));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, {"", 1, 1, 1}));
  EXPECT_THAT(Cli(*cluster, {"get", "toy", "--out", path}).err,
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("the job has no values yet")));
  ASSERT_OK(team.TrainTo(2));
  EXPECT_EQ(Cli(*cluster, {"get", "toy", "--out", path}).exit_code, 0);
  EXPECT_THAT(Cli(*cluster, {"get", "toy", "--out", Path("none/x")}).err, HasSubstr("NOT_FOUND"));
}

}  // namespace
}  // namespace tessera
