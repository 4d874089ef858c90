// Executors are killed while they load a model: all ranks have the old values or all have the
// file's, and training continues.
#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/stored_model.h"
#include "tests/fault/killed_and_stopped.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;

struct Place {
  const char* point;
  bool decided;  // There, for sure.
  int hit = 1;   // 2: where a new executor, which repeats the update, passes by.
  const char* action = "kill";
};

class LoadKillTest : public testing::TestWithParam<Place> {};

TEST_P(LoadKillTest, LeavesTheOldValuesOrTheFilesOnAllRanks) {
  LocalCluster::Options options;
  options.num_devices = kWorldSize;
  options.executor_binary = "worker/tessera-executor";
  options.executor_flags = {absl::StrCat("--fault-points=", GetParam().point, "=",
                                         GetParam().action, "@", GetParam().hit)};
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster, "toy", kWorldSize)));
  const auto read = [&](std::vector<float>* into) {
    return team.RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<float> values, ReadAll(session));
      if (session->rank() == 0) *into = values;
      return absl::OkStatus();
    });
  };
  const std::string path = testing::TempDir() + "/killed.safetensors";
  std::vector<float> saved, trained;
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(read(&saved));
  ASSERT_OK(team.RunAll([&](Session* session) { return session->Save(path); }));
  ASSERT_OK(team.TrainTo(3));
  ASSERT_OK(read(&trained));
  ASSERT_NE(saved, trained);
  const int64_t writes_before = GetParam().hit - 1;
  for (int64_t i = 0; i < writes_before; ++i) {
    ASSERT_OK(team.RunAll(
        [](Session* session) { return session->WriteParameters({}, [](int, int, Values) {}); }));
  }
  for (const absl::Status& status :
       team.Run([&](Session* session) { return LoadModel(session, path).status(); })) {
    // A rank may have it before another one's executor dies.
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::_));
    }
  }
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  const int64_t writes = team.session(0)->num_writes();
  if (GetParam().decided) {
    EXPECT_EQ(writes, writes_before + 1);
  }
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    EXPECT_EQ(session->num_writes(), writes);
    EXPECT_EQ(session->next_step(), 4);
    ASSIGN_OR_RETURN(const std::vector<float> values, ReadAll(session));
    EXPECT_EQ(values, writes > writes_before ? saved : trained) << "rank " << session->rank();
    return absl::OkStatus();
  }));
  ASSERT_OK(team.TrainTo(5));
}

INSTANTIATE_TEST_SUITE_P(
    Points, LoadKillTest,
    testing::ValuesIn(KilledAndStopped<Place>({{"load.read", false},
                                               {"write.before-vote", false},
                                               {"write.after-vote", false},
                                               {"write.after-decision", true},
                                               {"write.before-publish", true, 2}})),
    [](const auto& info) {
      std::string name = absl::StrCat(info.param.point, info.param.action);
      name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !isalpha(c); }),
                 name.end());
      return name;
    });

}  // namespace
}  // namespace tessera
