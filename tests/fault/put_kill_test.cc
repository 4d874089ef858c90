// Executors are killed in the middle of a put: all ranks have the old values or all have the new
// ones, training continues, and the put is done in the end, or was never.
#include <stdlib.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/session/session_buffers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/killed_and_stopped.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::LiveReading;
using testing_support::PutOutcome;
using testing_support::PutWhileTraining;
using testing_support::ReadAll;
using testing_support::ReadStored;
using testing_support::StoredValues;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::WritePutFile;

constexpr int kWorldSize = 3;

struct Place {
  const char* point;
  int num_workers;
  const char* action = "kill";
};

class PutKillTest : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/put-kill-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  void Start(const std::string& faults, int num_workers) {
    LocalCluster::Options options;
    options.num_workers = num_workers;
    options.num_devices = num_workers == 1 ? kWorldSize : 2;
    options.executor_binary = "worker/tessera-executor";
    options.executor_flags = {"--fault-points=" + faults};
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    std::vector<std::string> workers;
    for (int rank = 0; rank < kWorldSize; ++rank)
      workers.push_back(cluster_->worker_address(rank / options.num_devices));
    SessionOptions toy = ToyOptions(*cluster_, "toy", kWorldSize);
    toy.model.buffers = {{"stats", StoredDType::kF32, {700}}};
    auto team = TrainerTeam::Open(toy, workers);
    ASSERT_OK(team);
    team_ = std::make_unique<TrainerTeam>(*std::move(team));
    ASSERT_OK(team_->TrainTo(1));
  }
  // Of all parameters and the buffer, under their names; all other values than `seed` has else.
  std::string PutFileOf(const std::string& seed) const {
    std::vector<TensorSpec> tensors;
    std::map<std::string, std::string> as;
    for (const UnitSpec& unit : ToyModel(3).units) {
      for (const TensorSpec& parameter : unit.parameters) {
        tensors.push_back(parameter);
        as[parameter.name] = seed + parameter.name;
      }
    }
    tensors.push_back({"stats", {700}});
    as["stats"] = seed + "stats";
    const std::string path = Path(seed + ".safetensors");
    WritePutFile(path, tensors, as);
    return path;
  }
  // A step that changes nothing, over whatever failures; what all ranks see then is one of these.
  void StepAndLook(const std::vector<StoredValues>& allowed) {
    const int64_t step = team_->session(0)->next_step();
    EXPECT_OK(team_->RunAll([&](Session* session) -> absl::Status {
      while (session->next_step() == step) {
        const absl::Status status = session->RunStep([&] { return session->Step().status(); });
        if (!status.ok() && !absl::IsAborted(status)) return status;
      }
      return absl::OkStatus();
    }));
    const LiveReading now =
        testing_support::ReadLive(cluster_->coordinator_address(), "toy", Path("look"));
    if (!now.ok) return;  // An epoch ends.
    EXPECT_TRUE(std::any_of(allowed.begin(), allowed.end(),
                            [&](const StoredValues& values) {
                              return std::all_of(
                                  values.begin(), values.end(), [&](const auto& tensor) {
                                    return now.values.at(tensor.first) == tensor.second;
                                  });
                            }))
        << "a mixture at step " << step;
  }
  PutOutcome Put(const std::string& path, const std::vector<StoredValues>& allowed) {
    return PutWhileTraining(cluster_->coordinator_address(), "toy", {"--from", path},
                            Path("now.safetensors"), [&] { StepAndLook(allowed); });
  }

  std::string folder_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
};

// Each executor dies at its second put.
TEST_P(PutKillTest, LeavesTheOldValuesOrTheNewOnesOnAllRanksAndIsDoneInTheEnd) {
  ASSERT_NO_FATAL_FAILURE(
      Start(absl::StrCat(GetParam().point, "=", GetParam().action, "@2"), GetParam().num_workers));
  const std::string first = PutFileOf("first"), second = PutFileOf("second");
  StoredValues initial =
      testing_support::ReadLive(cluster_->coordinator_address(), "toy", Path("look")).values;
  const StoredValues of_first = ReadStored(first), of_second = ReadStored(second);
  for (auto it = initial.begin(); it != initial.end();)
    it = of_first.count(it->first) == 0 ? initial.erase(it) : std::next(it);
  const PutOutcome undisturbed = Put(first, {initial, of_first});
  ASSERT_EQ(undisturbed.result.exit_code, 0) << undisturbed.result.err;
  const PutOutcome disturbed = Put(second, {of_first, of_second});
  EXPECT_EQ(disturbed.result.exit_code, 0) << disturbed.result.err;
  ASSERT_TRUE(disturbed.applied);
  for (const auto& [name, tensor] : of_second) EXPECT_EQ(disturbed.after.values.at(name), tensor);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const SessionBuffers buffers(team_->session(rank));
    EXPECT_TRUE(buffers.IsGiven(0)) << "rank " << rank;
    EXPECT_TRUE(buffers.Get(0) == of_second.at("stats").second) << "rank " << rank;
  }
  // Only once, and it stays.
  StepAndLook({of_second});
  const LiveReading end =
      testing_support::ReadLive(cluster_->coordinator_address(), "toy", Path("look"));
  ASSERT_TRUE(end.ok) << end.error;
  EXPECT_EQ(end.committed_step - end.step, 2);
  ASSERT_OK(team_->TrainTo(end.step + 2));
}

INSTANTIATE_TEST_SUITE_P(Points, PutKillTest,
                         testing::ValuesIn(KilledAndStopped<Place>({{"put.before-vote", 1},
                                                                    {"put.after-vote", 1},
                                                                    {"put.after-decision", 1},
                                                                    {"put.before-publish", 1},
                                                                    {"put.before-vote", 2},
                                                                    {"put.after-vote", 2},
                                                                    {"put.after-decision", 2},
                                                                    {"put.before-publish", 2}})),
                         [](const auto& info) {
                           std::string name = info.param.point;
                           name.erase(std::remove_if(name.begin(), name.end(),
                                                     [](char c) { return !isalpha(c); }),
                                      name.end());
                           return absl::StrCat(name, info.param.num_workers, info.param.action);
                         });

using PutOfDeathTest = PutKillTest;

TEST_F(PutOfDeathTest, PutThatExecutorsDieWithIsGivenUpAndTrainingGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Start("put.before-vote=kill@1", 1));
  const std::string path = PutFileOf("never");
  const LiveReading before =
      testing_support::ReadLive(cluster_->coordinator_address(), "toy", Path("look"));
  const PutOutcome put = Put(path, {before.values});
  EXPECT_FALSE(put.applied);
  for (int rank = 0; rank < kWorldSize; ++rank)
    EXPECT_FALSE(SessionBuffers(team_->session(rank)).IsGiven(0)) << "rank " << rank;
  EXPECT_THAT(put.result.err, testing::AllOf(testing::HasSubstr("ended 3 times with it"),
                                             testing::HasSubstr("nothing was changed")));
  StepAndLook({before.values});
}

}  // namespace
}  // namespace tessera
