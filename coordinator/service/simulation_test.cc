// What must never happen is checked inside the cluster at every event. With SIMULATE_SEEDS in the
// environment that many seeds of each shape run, from SIMULATE_FIRST on: see tools/simulate.
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "coordinator/service/simulated_cluster.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

uint32_t Number(const char* name, uint32_t otherwise) {
  const char* text = getenv(name);
  uint32_t number = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &number)) ADD_FAILURE() << name << ": " << text;
  return number;
}

struct Shape {
  const char* name;
  uint32_t num_seeds;
  SimulatedShape cluster;
};

// About as many as all jobs have.
int NumRanks(const SimulatedShape& shape) {
  return shape.num_jobs == 1 ? shape.world_size : 2 * shape.num_jobs;
}

class SimulationTest : public testing::TestWithParam<Shape> {};

TEST_P(SimulationTest, NoFaultLosesAStepOrLeavesAJobStuck) {
  const Shape& shape = GetParam();
  const SimulatedShape& of = shape.cluster;
  const uint32_t first = Number("SIMULATE_FIRST", 1);
  const uint32_t num_seeds = Number("SIMULATE_SEEDS", shape.num_seeds);
  int64_t num_epochs = 0, num_steps = 0, num_restarts = 0, num_jobs = 0, num_rebuilt = 0,
          num_saved = 0, num_put = 0, num_gone_back = 0;
  for (uint32_t seed = first; seed < first + num_seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimulatedCluster cluster(seed, of);
    for (int i = 0; i < 5000 * NumRanks(of); ++i) {
      cluster.Act(/*chaos=*/true);
      if (HasFailure()) return;
    }
    num_epochs += cluster.num_epochs();
    num_restarts += cluster.num_restarts();
    num_jobs += cluster.num_jobs();
    num_rebuilt += cluster.num_rebuilt();
    num_saved += cluster.num_saved();
    num_put += cluster.num_put();
    num_gone_back += cluster.num_gone_back();
    cluster.Heal();
    cluster.AwaitSteps(3);
    for (int i = 0; i < 80'000 && !cluster.HasTakenThem(); ++i) cluster.Act(/*chaos=*/false);
    EXPECT_TRUE(cluster.HasTakenThem()) << "the healed cluster is stuck: " << cluster.Describe();
    num_steps += cluster.committed_steps();
    if (HasFailure()) return;
  }
  // The dice did roll: otherwise the above proved nothing.
  EXPECT_GT(num_epochs, 8 * num_seeds);
  EXPECT_GT(num_restarts, 5 * num_seeds);
  EXPECT_GT(num_steps, 3 * num_seeds);
  EXPECT_GT(num_jobs, num_seeds) << "shards were lost";
  if (of.has_copies) {
    EXPECT_GT(num_gone_back, num_seeds / 2);
  }
  EXPECT_GT(num_saved, num_seeds);
  EXPECT_GT(num_put, num_seeds);
  if (of.group_size > 0) {
    EXPECT_GT(num_rebuilt, num_seeds);
  }
}

constexpr PlacementRule kSpread = PlacementRule::kSpread;
constexpr PlacementRule kDefault = PlacementRule::kOneWorkerFirst;

// Several workers have more to disagree about. Of the hybrid jobs each worker has all shards, and
// there are spare workers.
INSTANTIATE_TEST_SUITE_P(
    Shapes, SimulationTest,
    testing::Values(Shape{"FourRanks", 200, {3, 2, 1, 4, 0, kSpread}},
                    Shape{"NineRanks", 60, {6, 2, 1, 9, 0, kSpread}},
                    Shape{"TwoGroups", 140, {4, 2, 1, 4, 2, kDefault}},
                    Shape{"ThreeGroups", 60, {5, 2, 1, 6, 2, kDefault}},
                    Shape{"FiveJobs", 30, {3, 4, 5, 3, 0, kDefault}},
                    Shape{"FourRanksAndOldJournals", 80, {3, 2, 1, 4, 0, kSpread, true}},
                    Shape{"FiveJobsAndOldJournals", 30, {3, 4, 5, 3, 0, kDefault, true}}),
    [](const auto& shape) { return std::string(shape.param.name); });

TEST(UndisturbedSimulationTest, HasOneEpoch) {
  SimulatedCluster cluster(/*seed=*/7, {3, 2, 1, 4, 0, kSpread});
  for (int i = 0; i < 60'000; ++i) cluster.Act(/*chaos=*/false);
  EXPECT_EQ(cluster.num_epochs(), 1) << cluster.Describe();
  EXPECT_GT(cluster.committed_steps(), 50);
}

}  // namespace
}  // namespace tessera::coordinator
