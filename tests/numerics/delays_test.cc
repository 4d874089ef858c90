// Random jobs with every operation, of trainers, engines and streams, held up at random: whatever
// may overtake something else does. Results keep their bits. (CORE-6, CORE-7, CORE-9, F2TR-5)
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/numerics/case_runner.h"
#include "tests/numerics/random_case.h"
#include "tests/testing/trainer_team.h"

namespace tessera::numerics {
namespace {

using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr uint64_t kFirstSeed = 777000;
constexpr int kJobs = 24;
constexpr int kStepsOfAJob = 8;

class DelaysTest : public testing::Test {
 protected:
  ~DelaysTest() override { DisarmAllFaultPoints(); }
  // Every second one has two gradient slots for all units: filled again too early, one would show.
  static RandomJob JobOf(uint64_t seed) {
    RandomJob job = MakeJob(seed);
    job.config.world_size = 2 + static_cast<int>(seed % 3);
    job.ranks_by_worker = {job.config.world_size};
    if (seed % 2 == 0) job.config.gradient_slots = 1;
    job.config.strategy = static_cast<Strategy>(seed % 3);
    return job;
  }
  static void Run(uint64_t seed, const LocalCluster::Options& cluster_options) {
    const RandomJob job = JobOf(seed);
    LocalCluster::Options of_job = cluster_options;
    of_job.num_devices = job.config.world_size;
    ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(of_job));
    SessionOptions options = ToyOptions(*cluster, absl::StrCat("job", seed), job.config.world_size);
    options.model = job.model;
    options.config = job.config;
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    const int64_t before = NumDelays();
    ArmDelays(seed);
    const absl::Status status = team.RunAll([&](Session* session) {
      return RunCases(job, seed, kStepsOfAJob, session, [] { (void)FaultPoint("trainer.code"); });
    });
    DisarmAllFaultPoints();
    ASSERT_OK(status) << "seed " << seed << ": " << Describe(job);
    EXPECT_GT(NumDelays() - before, 20);
  }
};

TEST_F(DelaysTest, AtEveryOperationChangeNoBit) {
  for (int j = 0; j < kJobs; ++j) Run(kFirstSeed + static_cast<uint64_t>(j), {});
}

// Executors in processes of their own.
TEST_F(DelaysTest, InExecutorsOfTheirOwnChangeNoBit) {
  for (int j = 0; j < 3; ++j) {
    LocalCluster::Options options;
    options.executor_binary = "worker/tessera-executor";
    options.executor_flags = {absl::StrCat("--fault-points=*=delay@", j)};
    Run(kFirstSeed + 100 + static_cast<uint64_t>(j), options);
  }
}

}  // namespace
}  // namespace tessera::numerics
