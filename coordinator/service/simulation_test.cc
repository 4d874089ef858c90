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
  int num_workers;
  int32_t world_size;
  int32_t group_size;  // 0: the job is not hybrid.
  uint32_t num_seeds;
};

class SimulationTest : public testing::TestWithParam<Shape> {};

TEST_P(SimulationTest, NoFaultLosesAStepOrLeavesTheJobStuck) {
  const Shape& shape = GetParam();
  const uint32_t first = Number("SIMULATE_FIRST", 1);
  const uint32_t num_seeds = Number("SIMULATE_SEEDS", shape.num_seeds);
  int64_t num_epochs = 0, num_steps = 0, num_restarts = 0, num_jobs = 0, num_rebuilt = 0;
  for (uint32_t seed = first; seed < first + num_seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimulatedCluster cluster(seed, shape.num_workers, shape.world_size, shape.group_size);
    for (int i = 0; i < 1500 * shape.world_size; ++i) cluster.Act(/*chaos=*/true);
    num_epochs += cluster.epoch();
    num_restarts += cluster.num_restarts();
    num_jobs += cluster.num_jobs();
    num_rebuilt += cluster.num_rebuilt();
    cluster.Heal();
    const int64_t before = cluster.committed_step();
    for (int i = 0; i < 40'000 && cluster.committed_step() < before + 3; ++i) {
      cluster.Act(/*chaos=*/false);
    }
    EXPECT_GE(cluster.committed_step(), before + 3)
        << "the healed cluster is stuck: " << cluster.Describe();
    num_steps += cluster.committed_step();
    if (HasFailure()) return;
  }
  // The dice did roll: otherwise the above proved nothing.
  EXPECT_GT(num_epochs, 8 * num_seeds);
  EXPECT_GT(num_restarts, 5 * num_seeds);
  EXPECT_GT(num_steps, 3 * num_seeds);
  if (shape.group_size == 0) {
    EXPECT_GT(num_jobs, num_seeds) << "shards were lost";
  } else {
    EXPECT_GT(num_rebuilt, num_seeds);
  }
}

// Of the hybrid jobs each worker has all shards, and there are spare workers.
INSTANTIATE_TEST_SUITE_P(Shapes, SimulationTest,
                         testing::Values(Shape{"FourRanks", 3, 4, 0, 300},
                                         Shape{"NineRanks", 6, 9, 0, 60},
                                         Shape{"TwoGroups", 4, 4, 2, 200},
                                         Shape{"ThreeGroups", 5, 6, 2, 60}),
                         [](const auto& shape) { return std::string(shape.param.name); });

TEST(UndisturbedSimulationTest, HasOneEpoch) {
  SimulatedCluster cluster(/*seed=*/7, /*num_workers=*/3, /*world_size=*/4);
  for (int i = 0; i < 20'000; ++i) cluster.Act(/*chaos=*/false);
  EXPECT_EQ(cluster.epoch(), 1);
  EXPECT_GT(cluster.committed_step(), 50);
}

}  // namespace
}  // namespace tessera::coordinator
