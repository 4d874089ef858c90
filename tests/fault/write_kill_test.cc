// An executor is killed in the middle of a write of parameters: all ranks have the old values or
// all have the new ones, and training continues.
#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
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
  const char* action = "kill";
};

class WriteKillTest : public testing::TestWithParam<Place> {};

// Each executor dies at its second write.
TEST_P(WriteKillTest, LeavesTheOldValuesOrTheNewOnAllRanks) {
  LocalCluster::Options options;
  options.num_devices = kWorldSize;
  options.executor_binary = "worker/tessera-executor";
  options.executor_flags = {
      absl::StrCat("--fault-points=", GetParam().point, "=", GetParam().action, "@2")};
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster, "toy", kWorldSize)));
  ASSERT_OK(team.TrainTo(2));
  const auto write = [&](float value) {
    return team.Run([&](Session* session) -> absl::Status {
      // Each rank has values of its own, so that a mixture would show.
      const absl::Status status =
          session->WriteParameters({0, 1, 2}, [&](int, int, absl::Span<float> values) {
            std::fill(values.begin(), values.end(), value + session->rank());
          });
      if (!absl::IsAborted(status)) return status;
      RETURN_IF_ERROR(session->Recover());
      return status;
    });
  };
  // The rank that wrote each element.
  std::vector<float> owners;
  for (const absl::Status& status : write(0)) EXPECT_OK(status);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<float> values, ReadAll(session));
    if (session->rank() == 0) owners = values;
    return absl::OkStatus();
  }));
  for (const absl::Status& status : write(10)) {
    // A rank may have it before another one's executor dies.
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::_));
    }
  }
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  const int64_t writes = team.session(0)->num_writes();
  if (GetParam().decided) {
    EXPECT_EQ(writes, 2);
  }
  std::vector<float> expected = owners;
  for (float& value : expected) value += writes == 2 ? 10 : 0;
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    EXPECT_EQ(session->num_writes(), writes);
    EXPECT_EQ(session->next_step(), 3);
    ASSIGN_OR_RETURN(const std::vector<float> values, ReadAll(session));
    EXPECT_EQ(values, expected) << "rank " << session->rank();
    return absl::OkStatus();
  }));
  ASSERT_OK(team.TrainTo(4));
}

INSTANTIATE_TEST_SUITE_P(
    Points, WriteKillTest,
    testing::ValuesIn(KilledAndStopped<Place>({{"write.before-vote", false},
                                               {"write.after-vote", false},
                                               {"write.after-decision", true},
                                               {"write.before-publish", true}})),
    [](const auto& info) {
      std::string name = absl::StrCat(info.param.point, info.param.action);
      name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !isalpha(c); }),
                 name.end());
      return name;
    });

}  // namespace
}  // namespace tessera
