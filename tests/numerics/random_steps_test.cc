// 10,000 random steps of 500 random jobs on one worker, and 1,200 of 60 on several: every
// parameter, at every look, has the bits of plain scalar code that knows no shards; the norm is
// within rounding of a sum in double.
//
// A failure names its seed: kFirstSeed, with one job, repeats it.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

constexpr uint64_t kFirstSeed = 1000;
constexpr int kJobs = 500;
constexpr int kStepsOfAJob = 20;
constexpr int kGroups = 4;  // Of jobs.
constexpr int kJobsOfSeveralWorkers = 60;

void RunJob(const RandomJob& job, uint64_t seed) {
  LocalCluster::Options cluster_options;
  cluster_options.num_workers = static_cast<int>(job.ranks_by_worker.size());
  cluster_options.num_devices = job.ranks_by_worker[0];
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(cluster_options));
  std::vector<std::string> workers;
  for (size_t worker = 0; worker < job.ranks_by_worker.size(); ++worker) {
    workers.insert(workers.end(), job.ranks_by_worker[worker],
                   cluster->worker_address(static_cast<int>(worker)));
  }
  SessionOptions options = ToyOptions(*cluster, absl::StrCat("job", seed), job.config.world_size);
  options.model = job.model;
  options.config = job.config;
  options.operation_timeout = absl::Seconds(30);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options, workers));
  ASSERT_OK(team.RunAll([&](Session* session) {
    return RunCases(job, seed, kStepsOfAJob, session);
  })) << "seed "
      << seed << ": " << Describe(job);
}

class RandomStepsTest : public testing::TestWithParam<int> {};

TEST_P(RandomStepsTest, HaveTheBitsOfScalarCodeThatKnowsNoShards) {
  for (int j = GetParam(); j < kJobs; j += kGroups) {
    const uint64_t seed = kFirstSeed + static_cast<uint64_t>(j);
    RunJob(MakeJob(seed), seed);
    if (HasFatalFailure()) return;
  }
}

TEST_P(RandomStepsTest, HaveThemOnSeveralWorkersToo) {
  for (int j = GetParam(); j < kJobsOfSeveralWorkers; j += kGroups) {
    const uint64_t seed = kFirstSeed + 10000 + static_cast<uint64_t>(j);
    RunJob(MakeJobOfSeveralWorkers(seed), seed);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, RandomStepsTest, testing::Range(0, kGroups));

}  // namespace
}  // namespace tessera::numerics
