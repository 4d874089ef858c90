// Executors are killed while they load an optimizer's state that PyTorch's DCP saved: it is loaded
// once, on all ranks.
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/conformance/dcp/golden_folders.h"
#include "tests/testing/toy_state.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing_support::GoldenFolder;
using testing_support::ReadGoldenFolder;
using testing_support::ReadState;
using testing_support::ToyOptions;
using testing_support::ToyState;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 2;

class LoadOptimizerKillTest : public testing::TestWithParam<const char*> {
 protected:
  // Each executor dies at its third write. One that replaces it may make two, so that in the end
  // all finish, in whatever order they die.
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = kWorldSize;
    options.executor_binary = "worker/tessera-executor";
    options.executor_flags = {absl::StrCat("--fault-points=", GetParam(), "=kill@3")};
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }

  std::unique_ptr<LocalCluster> cluster_;
};

TEST_P(LoadOptimizerKillTest, StateIsLoadedOnceOnAllRanksWhoeverDies) {
  const GoldenFolder golden = ReadGoldenFolder("adamw_flattened");
  const std::string folder = golden.WriteOut();
  SessionOptions options = ToyOptions(*cluster_, "toy", kWorldSize);
  options.model = ModelSpec();
  UnitSpec& unit = options.model.units.emplace_back();
  unit.name = "net";
  for (const char* name : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
    unit.parameters.push_back(
        {name, golden.tensors.at(absl::StrCat("model.", name)).shape, DType::kFp32});
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(team.TrainTo(step));
    ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(LoadOptimizerState(session, folder).status());
      EXPECT_EQ(session->num_writes(), step);
      EXPECT_EQ(session->next_step(), step + 1);
      return absl::OkStatus();
    }));
    ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const ToyState state, ReadState(session));
      EXPECT_THAT(state.update_counts, ElementsAre(3, 4, 5, 6));
      for (int p = 0; p < 4; ++p) {
        for (const auto& [array, moment] : {std::pair(StateArray::kFirstMoment, ".exp_avg"),
                                            std::pair(StateArray::kSecondMoment, ".exp_avg_sq")}) {
          const std::string name = absl::StrCat("optim.state.", unit.parameters[p].name, moment);
          const std::vector<double>& expected = golden.tensors.at(name).values;
          EXPECT_EQ(state.moments.at({array, 0, p}),
                    std::vector<float>(expected.begin(), expected.end()))
              << name;
        }
      }
      return absl::OkStatus();
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Points, LoadOptimizerKillTest,
                         testing::Values("write.before-vote", "write.after-vote",
                                         "write.after-decision"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(std::remove_if(name.begin(), name.end(),
                                                     [](char c) { return !isalpha(c); }),
                                      name.end());
                           return name;
                         });

}  // namespace
}  // namespace tessera
