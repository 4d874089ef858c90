// Hybrid sharding: each worker has the whole model, cut over its ranks. HSDP-5, HSDP-6.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::FloatNear;
using testing::Pointwise;
using testing_support::ReadAll;
using testing_support::ReferenceRun;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kSteps = 5;

struct Groups {
  int num_groups;
  int group_size;

  int world_size() const { return num_groups * group_size; }
};

std::unique_ptr<LocalCluster> StartCluster(const Groups& groups, int num_devices) {
  LocalCluster::Options options;
  options.num_workers = groups.num_groups;
  options.num_devices = num_devices;
  auto cluster = LocalCluster::Start(options);
  EXPECT_OK(cluster);
  return *std::move(cluster);
}

std::vector<std::string> WorkersByRank(const LocalCluster& cluster, const Groups& groups) {
  std::vector<std::string> workers;
  for (int rank = 0; rank < groups.world_size(); ++rank)
    workers.push_back(cluster.worker_address(rank / groups.group_size));
  return workers;
}

JobConfig Hybrid(const Groups& groups, Strategy strategy = Strategy::kHybridShard) {
  JobConfig config;
  config.world_size = groups.world_size();
  config.strategy = strategy;
  config.shard_group_size = groups.group_size;
  config.max_gradient_norm = 0.5;
  return config;
}

std::vector<float> ReadFrom(TrainerTeam* team, int rank) {
  std::vector<float> values;
  EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
    auto all = ReadAll(session);
    if (session->rank() == rank && all.ok()) values = *all;
    return all.status();
  }));
  return values;
}

// What every rank sees after training the toy model.
std::vector<float> Train(const Groups& groups, const JobConfig& config, const ModelSpec& model) {
  const auto cluster = StartCluster(groups, groups.group_size);
  SessionOptions options = ToyOptions(*cluster, "toy", groups.world_size());
  options.config = config;
  options.model = model;
  auto team = TrainerTeam::Open(options, WorkersByRank(*cluster, groups));
  EXPECT_OK(team);
  EXPECT_OK(team->TrainTo(kSteps));
  const std::vector<float> first = ReadFrom(&*team, 0);
  EXPECT_EQ(ReadFrom(&*team, groups.world_size() - 1), first);
  return first;
}

class HybridTest : public testing::TestWithParam<std::tuple<Groups, Strategy, double>> {};

TEST_P(HybridTest, TrainsToTheBitsOfFullShardOnTheSameHosts) {
  const auto& [groups, strategy, norm_p] = GetParam();
  const ModelSpec model = testing_support::ToyModel(3);
  JobConfig hybrid = Hybrid(groups, strategy);
  hybrid.gradient_norm_p = norm_p;
  hybrid.optimizer = OptimizerKind::kSgd;  // Which sees how far the gradient was clipped.
  hybrid.groups[0].learning_rate = 0.1;
  JobConfig full = hybrid;
  full.strategy = Strategy::kFullShard;
  full.shard_group_size = 0;
  const std::vector<float> trained = Train(groups, hybrid, model);
  // The reference clips by the 2-norm alone.
  if (norm_p == 2) {
    EXPECT_THAT(trained, Pointwise(FloatNear(1e-5f), ReferenceRun(model, hybrid, kSteps)));
  }
  // Sums are made in the same order; only the gradient's norm is added up in other parts.
  EXPECT_THAT(trained, Pointwise(FloatNear(3e-7f), Train(groups, full, model)));
  hybrid.max_gradient_norm = full.max_gradient_norm = 0;
  EXPECT_EQ(Train(groups, hybrid, model), Train(groups, full, model));
}

INSTANTIATE_TEST_SUITE_P(Groups, HybridTest,
                         testing::Values(std::tuple(Groups{2, 2}, Strategy::kHybridShard, 2.0),
                                         std::tuple(Groups{2, 2}, Strategy::kHybridShardZero2, 3.0),
                                         std::tuple(Groups{3, 1}, Strategy::kHybridShard, 2.0),
                                         std::tuple(Groups{2, 3}, Strategy::kHybridShard, 1.0)));

TEST(HybridUnitsTest, UnitsOfBothKindsTrainInOneModel) {
  const Groups groups = {2, 2};
  ModelSpec model = testing_support::ToyModel(4);
  model.units[0].strategy = Strategy::kFullShard;
  model.units[2].strategy = Strategy::kShardGradOp;
  JobConfig config = Hybrid(groups);
  config.max_gradient_norm = 0;
  JobConfig full = config;
  full.strategy = Strategy::kFullShard;
  full.shard_group_size = 0;
  EXPECT_EQ(Train(groups, config, model), Train(groups, full, testing_support::ToyModel(4)));
}

TEST(HybridUnitsTest, SingleGroupIsOneWorkersJob) {
  const Groups groups = {1, 3};
  const ModelSpec model = testing_support::ToyModel(3);
  JobConfig full = Hybrid(groups);
  full.strategy = Strategy::kFullShard;
  full.shard_group_size = 0;
  EXPECT_EQ(Train(groups, Hybrid(groups), model), Train(groups, full, model));
}

class HybridJobTest : public testing::Test {
 protected:
  void Open() {
    cluster_ = StartCluster(groups_, 4);
    SessionOptions options = ToyOptions(*cluster_, "toy", groups_.world_size());
    options.config = Hybrid(groups_);
    auto team = TrainerTeam::Open(options, WorkersByRank(*cluster_, groups_));
    ASSERT_OK(team);
    team_.emplace(*std::move(team));
    ASSERT_OK(team_->TrainTo(2));
  }
  const Groups groups_ = {2, 2};
  std::unique_ptr<LocalCluster> cluster_;
  std::optional<TrainerTeam> team_;
};

TEST_F(HybridJobTest, EachGroupIsOnAWorkerOfItsOwnThoughOneHasRoomForAll) {
  Open();
  ASSERT_OK_AND_ASSIGN(const v1::Job job, GetJob({cluster_->coordinator_address()}, "toy",
                                                 absl::Now() + absl::Seconds(10)));
  for (const v1::RankPlacement& placement : job.placements())
    EXPECT_EQ(placement.worker_id(), absl::StrCat("local", placement.rank() / 2));
}

TEST_F(HybridJobTest, SavedModelHoldsEveryElementOnceAndIsWhatTheRanksSee) {
  Open();
  std::string folder = "/tmp/tessera-hybrid-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/model.safetensors";
  ASSERT_OK(team_->RunAll([&](Session* session) { return session->Save(path); }));
  ASSERT_OK_AND_ASSIGN(const std::vector<LoadedTensor> loaded, ReadModelFile(path));
  std::filesystem::remove_all(folder);
  std::map<std::string, std::vector<float>> by_name;
  for (const LoadedTensor& tensor : loaded) by_name[tensor.stored.name] = tensor.values;
  std::vector<float> in_order;
  for (const UnitLayout& unit : team_->session(0)->layout().units) {
    for (const PlacedParameter& parameter : unit.flat.parameters()) {
      const auto& values = by_name.at(parameter.spec.name);
      in_order.insert(in_order.end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(in_order, ReadFrom(&*team_, 3));
}

TEST_F(HybridJobTest, ParametersThatAreSetAreSeenOnBothWorkersAndTrainOn) {
  Open();
  ASSERT_OK(team_->RunAll([](Session* session) {
    const auto fill = [](int, int, absl::Span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i % 5);
    };
    return session->WriteParameters({0, 1, 2}, fill);
  }));
  const std::vector<float> first = ReadFrom(&*team_, 0);
  EXPECT_EQ(ReadFrom(&*team_, 2), first);
  EXPECT_EQ(first[1], 0.25f);
  ASSERT_OK(team_->TrainTo(4));
  EXPECT_EQ(ReadFrom(&*team_, 3), ReadFrom(&*team_, 0));
}

}  // namespace
}  // namespace tessera
