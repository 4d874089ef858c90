// An executor owns nothing: what it worked on is in the worker's memory, untouched by its death.
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/testing/process_view.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::CommandLine;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::RegionsOf;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 2;

// The published parameters and each rank's shard: its parameters and moments in both versions, and
// its reduced gradient. This process is the worker, so it is the owner of the descriptors.
std::map<std::string, std::string> Shards(const std::string& job_id) {
  std::map<std::string, std::string> shards;
  for (auto& [label, bytes] : RegionsOf(getpid(), job_id)) {
    if (label == "parameters" || absl::EndsWith(label, "/state")) shards[label] = std::move(bytes);
  }
  return shards;
}

int64_t NumNonZero(const std::string& bytes) {
  return bytes.size() - std::count(bytes.begin(), bytes.end(), '\0');
}

// Which ranks' executors are killed.
class ShardMemoryTest : public testing::TestWithParam<std::vector<int>> {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2 * kWorldSize;
    options.executor_binary = "worker/tessera-executor";
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_P(ShardMemoryTest, KilledExecutorLeavesShardsByteIdenticalAndTheNextOneGoesOnWithThem) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam calm,
                       TrainerTeam::Open(ToyOptions(*cluster_, "calm", kWorldSize)));
  ASSERT_OK_AND_ASSIGN(TrainerTeam hit,
                       TrainerTeam::Open(ToyOptions(*cluster_, "hit", kWorldSize)));
  ASSERT_OK(calm.TrainTo(5));
  ASSERT_OK(hit.TrainTo(5));
  const auto before = Shards("hit");
  ASSERT_EQ(before.size(), 1 + kWorldSize);
  for (const auto& [label, bytes] : before) EXPECT_GT(NumNonZero(bytes), 500) << label;

  const std::map<std::string, int> executors = ExecutorsOf(getpid());
  ASSERT_EQ(executors.size(), 2 * kWorldSize);
  for (int rank : GetParam()) {
    ASSERT_EQ(kill(executors.at(absl::StrCat("hit/", rank)), SIGKILL), 0);
  }
  for (int rank : GetParam()) {
    const int pid = executors.at(absl::StrCat("hit/", rank));
    ASSERT_TRUE(Eventually([pid] { return CommandLine(pid).empty(); }));
  }
  EXPECT_TRUE(Shards("hit") == before) << "after the kill";
  // The worker has noticed, so there is something to recover from.
  for (int rank : GetParam()) {
    const std::string label = absl::StrCat("hit/", rank);
    ASSERT_TRUE(Eventually([&] {
      const auto now = ExecutorsOf(getpid());
      return now.count(label) > 0 && now.at(label) != executors.at(label);
    }));
  }

  ASSERT_OK(hit.RunAll([](Session* session) { return session->Recover(); }));
  std::map<std::string, int> successors = ExecutorsOf(getpid());
  ASSERT_EQ(successors.size(), 2 * kWorldSize);
  for (int rank : GetParam()) {
    const std::string label = absl::StrCat("hit/", rank);
    EXPECT_NE(successors.at(label), executors.at(label));
  }
  EXPECT_TRUE(Shards("hit") == before) << "after the new executor started";

  ASSERT_OK(hit.TrainTo(10));
  ASSERT_OK(calm.TrainTo(10));
  EXPECT_FALSE(Shards("hit") == before) << "training went on in this memory";
  EXPECT_TRUE(Shards("hit") == Shards("calm")) << "as in an undisturbed run";
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardMemoryTest,
                         testing::Values(std::vector<int>{0}, std::vector<int>{1},
                                         std::vector<int>{0, 1}));

}  // namespace
}  // namespace tessera
