// Jobs whose ranks are on several workers: real workers, each with memory of its own, real sockets
// between their executors.
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using testing_support::FlightOp;
using testing_support::ReadAll;
using testing_support::ReadFlightLog;
using testing_support::ReferenceRun;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

// So many workers with so many devices each, and a job that fills them.
struct Hosts {
  int num_workers;
  int num_devices;
  int world_size;
};

std::unique_ptr<LocalCluster> StartCluster(const Hosts& hosts) {
  LocalCluster::Options options;
  options.num_workers = hosts.num_workers;
  options.num_devices = hosts.num_devices;
  auto cluster = LocalCluster::Start(options);
  EXPECT_OK(cluster);
  return *std::move(cluster);
}

// Ranks fill the workers one after another.
std::vector<std::string> WorkersByRank(const LocalCluster& cluster, const Hosts& hosts) {
  std::vector<std::string> workers;
  for (int rank = 0; rank < hosts.world_size; ++rank) {
    workers.push_back(cluster.worker_address(rank / hosts.num_devices));
  }
  return workers;
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

class SeveralWorkersTest : public testing::TestWithParam<std::tuple<Hosts, Strategy>> {};

TEST_P(SeveralWorkersTest, TrainingIsThatOfTheUnshardedReferenceOnEveryWorker) {
  const auto& [hosts, strategy] = GetParam();
  const auto cluster = StartCluster(hosts);
  SessionOptions options = ToyOptions(*cluster, "toy", hosts.world_size);
  options.config.strategy = strategy;
  options.config.max_gradient_norm = 0.5;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(options, WorkersByRank(*cluster, hosts)));
  ASSERT_OK(team.TrainTo(6));
  const std::vector<float> first = ReadFrom(&team, 0);
  EXPECT_THAT(first, Pointwise(FloatNear(3e-6f), ReferenceRun(options.model, options.config, 6)));
  EXPECT_EQ(ReadFrom(&team, hosts.world_size - 1), first);
}

TEST_P(SeveralWorkersTest, UnitsWithFrozenParametersTrainToTheReferenceAndReduceTheOthersOnly) {
  const auto& [hosts, strategy] = GetParam();
  const auto cluster = StartCluster(hosts);
  SessionOptions options = ToyOptions(*cluster, "toy", hosts.world_size);
  options.model = ToyModel(3, /*with_frozen=*/true);
  options.config.strategy = strategy;
  options.config.max_gradient_norm = 0.5;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(options, WorkersByRank(*cluster, hosts)));
  ASSERT_OK(team.TrainTo(4));
  EXPECT_THAT(ReadFrom(&team, 0),
              Pointwise(FloatNear(3e-6f), ReferenceRun(options.model, options.config, 4)));
  for (const FlightOp& op : ReadFlightLog(cluster->worker_address(), "toy", 0)) {
    if (op.op != "reduce") continue;
    for (const UnitSpec& unit : options.model.units) {
      if (unit.name != op.unit) continue;
      EXPECT_EQ(op.bytes, (*Numel(unit.parameters[0]) + *Numel(unit.parameters[1])) *
                              static_cast<int64_t>(sizeof(float)));
    }
  }
}

TEST(AnyRankTest, TrainersThatNameNoneAreTheRanksOfTheirWorkers) {
  const Hosts hosts = {2, 2, 4};
  const auto cluster = StartCluster(hosts);
  SessionOptions options = ToyOptions(*cluster, "toy", hosts.world_size);
  options.rank = kAnyRank;
  std::vector<SessionOptions> trainers;
  for (const int worker : {1, 0, 1, 0}) {
    options.worker_address = cluster->worker_address(worker);
    trainers.push_back(options);
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::OpenEach(trainers));
  const auto ranks_of = [&](int first, int second) {
    return std::set<int>{team.session(first)->rank(), team.session(second)->rank()};
  };
  EXPECT_EQ(ranks_of(1, 3), (std::set<int>{0, 1}));
  EXPECT_EQ(ranks_of(0, 2), (std::set<int>{2, 3}));
  ASSERT_OK(team.TrainTo(2));
  EXPECT_THAT(Session::Open(options),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("all 2 of its ranks on this worker are attached to trainers")));
  // The next one is the rank whose trainer has gone.
  const int left = team.session(1)->rank();
  team.Close(1);
  ASSERT_OK_AND_ASSIGN(const auto next, Session::Open(options));
  EXPECT_EQ(next->rank(), left);
  EXPECT_EQ(next->next_step(), 3);
}

INSTANTIATE_TEST_SUITE_P(
    Hosts, SeveralWorkersTest,
    testing::Combine(testing::Values(Hosts{2, 1, 2}, Hosts{2, 2, 4}, Hosts{2, 2, 3}, Hosts{3, 1, 3},
                                     Hosts{3, 2, 5}),
                     testing::Values(Strategy::kFullShard, Strategy::kShardGradOp,
                                     Strategy::kNoShard)));

}  // namespace
}  // namespace tessera
