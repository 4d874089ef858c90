#include "coordinator/service/simulated_cluster.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

// What must never happen is checked inside the cluster at every event.
TEST(SimulationTest, NoFaultLosesAStepOrLeavesTheJobStuck) {
  int64_t num_epochs = 0;
  int64_t num_steps = 0;
  int num_restarts = 0;
  int num_jobs = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimulatedCluster cluster(seed, /*num_workers=*/3, /*world_size=*/4);
    for (int i = 0; i < 6000; ++i) cluster.Act(/*chaos=*/true);
    num_epochs += cluster.epoch();
    num_restarts += cluster.num_restarts();
    num_jobs += cluster.num_jobs();
    cluster.Heal();
    const int64_t before = cluster.committed_step();
    for (int i = 0; i < 40'000 && cluster.committed_step() < before + 3; ++i) {
      cluster.Act(/*chaos=*/false);
    }
    EXPECT_GE(cluster.committed_step(), before + 3) << "the healed cluster is stuck";
    num_steps += cluster.committed_step();
    if (HasFailure()) return;
  }
  // The dice did roll: otherwise the above proved nothing.
  EXPECT_GT(num_epochs, 3000);
  EXPECT_GT(num_restarts, 1500);
  EXPECT_GT(num_jobs, 400) << "shards were lost";
  EXPECT_GT(num_steps, 1200);
}

TEST(SimulationTest, WithoutFaultsThereIsOneEpoch) {
  SimulatedCluster cluster(/*seed=*/7, /*num_workers=*/3, /*world_size=*/4);
  for (int i = 0; i < 20'000; ++i) cluster.Act(/*chaos=*/false);
  EXPECT_EQ(cluster.epoch(), 1);
  EXPECT_GT(cluster.committed_step(), 50);
}

}  // namespace
}  // namespace tessera::coordinator
