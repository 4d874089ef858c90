// Hybrid strategies of a torch model on two workers with two ranks each. HSDP-4 to HSDP-6.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/flight_log.h"

namespace tessera {
namespace {

using testing_support::CountOps;
using testing_support::FlightOp;
using testing_support::ReadFlightLog;

constexpr int kRanks = 4, kGroupSize = 2, kSteps = 5;

class HybridShardTest : public TorchCluster {
 protected:
  void SetUp() override { StartCluster(); }
  void StartCluster() {
    LocalCluster::Options options;
    options.num_workers = kRanks / kGroupSize;
    options.num_devices = kGroupSize;  // So that a job of any strategy needs both workers.
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }

  std::string WorkerOf(int rank) { return cluster_->worker_address(rank / kGroupSize); }
  SessionOptions OptionsOf(int rank, Strategy strategy) {
    SessionOptions options = OptionsFor(rank, kRanks);
    options.worker_address = WorkerOf(rank);
    options.config.strategy = strategy;
    options.config.optimizer = OptimizerKind::kAdam;
    options.config.groups[0].learning_rate = 0.01;
    options.config.shard_group_size = IsHybrid(strategy) ? kGroupSize : 0;
    return options;
  }

  // The losses of all ranks, concatenated, of a job of its own.
  std::vector<double> Train(Strategy strategy, const WrapPolicy& policy = AlwaysWrap()) {
    StartCluster();
    std::vector<std::vector<double>> losses(kRanks);
    ForEachRank(kRanks, [&](int rank) {
      const std::shared_ptr<Net> net = MakeNet();
      SessionOptions options = OptionsOf(rank, strategy);
      if (policy.strategy != nullptr) options.config.shard_group_size = kGroupSize;
      auto model = ShardedModel::Attach(net, options, policy);
      ASSERT_OK(model);
      for (int step = 1; step <= kSteps; ++step) {
        ASSERT_OK((*model)->RunStep([&] {
          const torch::Tensor loss = LossOf(*net, step, rank);
          losses[rank].push_back(loss.item<double>());
          loss.backward();
          return (*model)->Step();
        }));
      }
      ExpectCounts((*model)->session(), rank);
    });
    std::vector<double> all;
    for (const auto& of_rank : losses) all.insert(all.end(), of_rank.begin(), of_rank.end());
    return all;
  }

  // Each unit is reduced once, and only slices that the rank's host has not are gathered.
  void ExpectCounts(const Session& session, int rank) {
    const std::vector<FlightOp> log = ReadFlightLog(WorkerOf(rank), "torch", rank);
    EXPECT_EQ(CountOps(log, "reduce", kSteps), session.num_units());
    for (const FlightOp& op : log) {
      if (op.step != kSteps || op.op != "unshard") continue;
      for (const UnitLayout& unit : session.layout().units) {
        if (unit.flat.unit_name() != op.unit) continue;
        const int64_t slice = unit.shards.shard_numel() * 4;
        EXPECT_EQ(op.bytes, IsHybrid(unit.strategy) ? 0 : slice) << op.unit;
      }
    }
  }
};

TEST_F(HybridShardTest, LossesAreThoseOfFullShardToTheBit) {
  const std::vector<double> full = Train(Strategy::kFullShard);
  EXPECT_EQ(full.size(), size_t{kRanks * kSteps});
  EXPECT_EQ(Train(Strategy::kHybridShard), full);
  EXPECT_EQ(Train(Strategy::kHybridShardZero2), full);
}

TEST_F(HybridShardTest, HybridUnitsTrainInsideAFullyShardedRoot) {
  WrapPolicy policy = AlwaysWrap();
  policy.strategy = [](const WrapCandidate& unit) -> std::optional<Strategy> {
    if (unit.name == "first") return Strategy::kHybridShard;
    if (unit.name == "second") return Strategy::kHybridShardZero2;
    return std::nullopt;
  };
  EXPECT_EQ(Train(Strategy::kFullShard, policy), Train(Strategy::kFullShard));
}

TEST_F(HybridShardTest, ModuleStatesOfRankZeroReachBothGroups) {
  ForEachRank(kRanks, [&](int rank) {
    const std::shared_ptr<Net> net = MakeNet();
    {
      torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) parameter.fill_(rank);
      for (torch::Tensor& buffer : net->buffers()) buffer.fill_(rank);
    }
    AttachOptions attach;
    attach.sync_module_states = true;
    auto model =
        ShardedModel::Attach(net, OptionsOf(rank, Strategy::kHybridShard), AlwaysWrap(), attach);
    ASSERT_OK(model);
    SummonOptions options;
    options.writeback = false;
    ASSERT_OK((*model)->SummonFullParams(options, [&] {
      for (const auto& item : net->named_parameters())
        EXPECT_EQ(item.value().abs().max().item<float>(), 0) << item.key() << " of rank " << rank;
      for (const auto& item : net->named_buffers())
        EXPECT_EQ(item.value().abs().max().item<float>(), 0) << item.key() << " of rank " << rank;
      return absl::OkStatus();
    }));
  });
}

TEST_F(HybridShardTest, StrategyWithoutAGroupSizeIsRefusedByName) {
  SessionOptions options = OptionsOf(0, Strategy::kHybridShard);
  options.config.shard_group_size = 0;
  EXPECT_THAT(ShardedModel::Attach(MakeNet(), options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("HYBRID_SHARD needs a shard_group_size")));
}

}  // namespace
}  // namespace tessera
