// Where and in which spec checkpoints that are asked for are made: through a real coordinator,
// worker and executors (threads).
#include <filesystem>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/manifest.h"
#include "client/cli/cli.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tests/integration/save_request_fixture.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::ReadStored;
using testing_support::StoredValues;
using testing_support::TrainerTeam;

TEST_F(SaveRequestTest, FormsOfASaveAreThoseThatTrainersHave) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
  v1::SaveSpec spec;
  spec.set_max_file_bytes(1000);
  spec.set_in_foreground(true);
  ASSERT_OK_AND_ASSIGN(const int64_t files, Ask(Path("files"), spec));
  EXPECT_EQ(TrainUntilEnded(&team, files).code(), 0);
  EXPECT_TRUE(std::filesystem::exists(Path("files/model.safetensors.index.json")));
  spec.Clear();
  spec.set_in_parts(true);
  ASSERT_OK_AND_ASSIGN(const int64_t parts, Ask(Path("parts"), spec));
  const v1::Save save = TrainUntilEnded(&team, parts);
  EXPECT_EQ(save.code(), 0) << save.message();
  int64_t bytes = 0;
  for (int rank = 0; rank < kWorldSize; ++rank)
    bytes +=
        std::filesystem::file_size(Path(absl::StrCat("parts/rank-0000", rank, "/", kPartFileName)));
  EXPECT_EQ(save.size_bytes(), bytes);
  std::ostringstream out, err;
  ASSERT_EQ(
      cli::RunCli({"consolidate", Path("parts"), "--out", Path("whole")}, {&out, &err, false}), 0)
      << err.str();
  EXPECT_EQ(ReadStored(Path("whole")), Undisturbed(save.step()));
}

TEST_F(SaveRequestTest, PathThatCannotBeWrittenIsTheSavesErrorWithTheRankAndTrainingGoesOn) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
  ASSERT_OK_AND_ASSIGN(const int64_t number, Ask("/proc/no/such/folder"));
  const v1::Save save = TrainUntilEnded(&team, number);
  EXPECT_NE(save.code(), 0);
  EXPECT_THAT(save.message(), HasSubstr("rank 0"));
  EXPECT_THAT(save.message(), HasSubstr("/proc/no/such"));
  EXPECT_EQ(save.tries(), 0);
  const int64_t step = team.session(0)->next_step();
  ASSERT_OK(team.TrainTo(step));
  EXPECT_THAT(Ask("relative"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("relative")));
}

TEST_F(SaveRequestTest, WhatIsThereIsRefusedUnreplacedIfTheFormSaysSo) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
  v1::SaveSpec spec;
  spec.set_no_overwrite(true);
  ASSERT_OK_AND_ASSIGN(const int64_t first, Ask(Path("c"), spec));
  const v1::Save made = TrainUntilEnded(&team, first);
  ASSERT_EQ(made.code(), 0) << made.message();
  EXPECT_TRUE(made.spec().no_overwrite());
  const StoredValues saved = ReadStored(Path("c"));
  const auto expect_refusal = [&](const std::string& name) {
    ASSERT_OK_AND_ASSIGN(const int64_t number, Ask(Path(name), spec));
    const v1::Save save = TrainUntilEnded(&team, number);
    EXPECT_EQ(save.code(), static_cast<int>(absl::StatusCode::kAlreadyExists)) << save.message();
    EXPECT_THAT(save.message(), HasSubstr(Path(name)));
  };
  for (const bool in_foreground : {true, false}) {
    spec.set_in_foreground(in_foreground);
    expect_refusal("c");
  }
  EXPECT_EQ(ReadStored(Path("c")), saved);
  EXPECT_EQ(Get(first).fate(), v1::SAVE_FATE_KEPT);
  // Of parts each rank looks for its own.
  spec.Clear();
  spec.set_in_parts(true);
  ASSERT_OK_AND_ASSIGN(const int64_t parts, Ask(Path("parts"), spec));
  ASSERT_EQ(TrainUntilEnded(&team, parts).code(), 0);
  for (int rank = 0; rank + 1 < kWorldSize; ++rank)
    std::filesystem::remove_all(Path(absl::StrCat("parts/rank-0000", rank)));
  spec.set_no_overwrite(true);
  expect_refusal("parts");
  EXPECT_FALSE(std::filesystem::exists(Path("parts/rank-00000"))) << "nobody wrote anything";
  // Without it the path is replaced, and what is to be said of it on the command line is said.
  ASSERT_OK_AND_ASSIGN(const int64_t again, Ask(Path("c")));
  EXPECT_EQ(TrainUntilEnded(&team, again).code(), 0);
  EXPECT_EQ(Get(first).fate(), v1::SAVE_FATE_REPLACED);
  const CliResult asked =
      Cli({"save", "--job", "toy", "--to", Path("c"), "--no-overwrite", "--no-wait", "--json"});
  ASSERT_EQ(asked.exit_code, 0) << asked.err;
  const v1::Save refused = TrainUntilEnded(&team, nlohmann::json::parse(asked.out)["number"]);
  EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kAlreadyExists));
}

}  // namespace
}  // namespace tessera
