// A job that trains, in a cluster of threads, and values that clients set in it meanwhile, for
// tests of that. A test fixture.
#ifndef TESSERA_TESTS_INTEGRATION_LIVE_PUT_FIXTURE_H_
#define TESSERA_TESTS_INTEGRATION_LIVE_PUT_FIXTURE_H_

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {

struct Case {
  std::string name;
  int num_workers = 1, num_devices = 1;  // Of each.
  int world_size = 1;
  Strategy strategy = Strategy::kFullShard;
  int group_size = 0;
  bool optimizer_in_backward = false;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
};

inline std::unique_ptr<LocalCluster> StartCluster(const Case& c) {
  LocalCluster::Options options;
  options.num_workers = c.num_workers;
  options.num_devices = c.num_devices;
  auto cluster = LocalCluster::Start(options);
  EXPECT_OK(cluster);
  return *std::move(cluster);
}

inline absl::StatusOr<testing_support::TrainerTeam> OpenTeam(const LocalCluster& cluster,
                                                             const Case& c) {
  SessionOptions options = testing_support::ToyOptions(cluster, "toy", c.world_size);
  options.model = testing_support::ToyModel(3, /*with_frozen=*/true);
  options.config.strategy = c.strategy;
  options.config.shard_group_size = c.group_size;
  options.config.optimizer = c.optimizer;
  if (c.optimizer == OptimizerKind::kSgd) options.config.groups[0].momentum = 0.9;
  options.config.optimizer_in_backward = c.optimizer_in_backward;
  options.config.max_gradient_norm = c.optimizer_in_backward ? 0.0 : 0.5;
  std::vector<std::string> workers;
  for (int rank = 0; rank < c.world_size; ++rank)
    workers.push_back(cluster.worker_address(rank / c.num_devices));
  return testing_support::TrainerTeam::Open(options, workers);
}

inline std::vector<TensorSpec> AllParameters(const ModelSpec& model) {
  std::vector<TensorSpec> all;
  for (const UnitSpec& unit : model.units)
    all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

class LivePutTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/put-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  testing_support::PutOutcome Put(const LocalCluster& cluster, testing_support::TrainerTeam* team,
                                  std::vector<std::string> args) {
    return testing_support::PutWhileTraining(
        cluster.coordinator_address(), "toy", std::move(args), Path("now.safetensors"),
        [&] { EXPECT_OK(team->TrainTo(team->session(0)->next_step())); });
  }
  testing_support::LiveReading Read(const LocalCluster& cluster) {
    testing_support::LiveReading now =
        testing_support::ReadLive(cluster.coordinator_address(), "toy", Path("now.safetensors"));
    EXPECT_TRUE(now.ok) << now.error;
    return now;
  }

  std::string folder_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_INTEGRATION_LIVE_PUT_FIXTURE_H_
