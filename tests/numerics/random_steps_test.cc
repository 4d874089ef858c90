// 10,000 random steps of 500 random jobs: every parameter, at every look, has the bits of plain
// scalar code that knows no shards; the norm is within rounding of a sum in double.
//
// A failure names its seed; `kFirstSeed` and `kJobs` of one job alone repeat it.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cpp/local_cluster.h"
#include "gtest/gtest.h"
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
constexpr int kGroups = 4;  // Of jobs; each has a cluster of its own.

class RandomStepsTest : public testing::TestWithParam<int> {};

TEST_P(RandomStepsTest, HaveTheBitsOfScalarCodeThatKnowsNoShards) {
  for (int j = GetParam(); j < kJobs; j += kGroups) {
    const uint64_t seed = kFirstSeed + static_cast<uint64_t>(j);
    const RandomJob job = MakeJob(seed);
    LocalCluster::Options cluster_options;
    cluster_options.num_devices = job.config.world_size;
    ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(cluster_options));
    SessionOptions options = ToyOptions(*cluster, absl::StrCat("job", j), job.config.world_size);
    options.model = job.model;
    options.config = job.config;
    options.operation_timeout = absl::Seconds(30);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    ASSERT_OK(team.RunAll(
        [&](Session* session) { return RunCases(job, seed, kStepsOfAJob, session); }))
        << "seed " << seed << ": " << Describe(job);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, RandomStepsTest, testing::Range(0, kGroups));

}  // namespace
}  // namespace tessera::numerics
