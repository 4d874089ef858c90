#include "job/job_memory.h"

#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"

namespace tessera {
namespace {

// 1,024 elements a unit, so that nothing is padded on two ranks.
JobMemory MemoryOf(const JobConfig& config) {
  ModelSpec model;
  for (const std::string name : {"a", "b"}) model.units.push_back({name, {{name + ".w", {1024}}}});
  return JobMemory::Create(LayOut(model, config).value(), config).value();
}

JobConfig OfTwoRanks() {
  JobConfig config;
  config.world_size = 2;
  return config;
}

TEST(JobMemoryTest, HostMemoryCountsWhatRanksShareOnceAndTheirOwnForEach) {
  const JobMemory memory = MemoryOf(OfTwoRanks());
  const HostMemory host = memory.host_memory(/*parameters_on_host=*/true, /*state_on_host=*/true);
  EXPECT_EQ(host.shared_bytes, 2 * 1024 * 4);
  // Shards of parameters, two moments twice each, and the reduced gradient; and the gradients.
  EXPECT_EQ(host.rank_bytes, 7 * 1024 * 4 + memory.gradient_region_bytes());
  EXPECT_EQ(host.BytesOf(2), host.shared_bytes + 2 * host.rank_bytes);
}

TEST(JobMemoryTest, HostMemoryOfSgdHasOneMoment) {
  JobConfig config = OfTwoRanks();
  config.optimizer = OptimizerKind::kSgd;
  const JobMemory memory = MemoryOf(config);
  EXPECT_EQ(memory.host_memory(true, true).rank_bytes,
            5 * 1024 * 4 + memory.gradient_region_bytes());
}

TEST(JobMemoryTest, OnAGpuTheHostHasTheGradientsAndWhatIsOffloaded) {
  const JobMemory memory = MemoryOf(OfTwoRanks());
  EXPECT_EQ(memory.host_memory(false, false).BytesOf(2), 2 * memory.gradient_region_bytes());
  EXPECT_EQ(memory.host_memory(false, true).rank_bytes, memory.host_memory(true, true).rank_bytes);
  EXPECT_EQ(memory.host_memory(false, true).shared_bytes, 0);
}

}  // namespace
}  // namespace tessera
