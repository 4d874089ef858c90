#include "client/cli/save_view.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

v1::Save Waiting() {
  v1::Save save;
  save.set_number(3);
  save.set_requested(true);
  save.mutable_spec()->set_path("/c/three");
  save.set_state(v1::SAVE_STATE_WAITING);
  save.set_waits_for("the next step");
  return save;
}

v1::Save Saved() {
  v1::Save save = Waiting();
  save.set_number(2);
  save.mutable_spec()->set_path("/c/two");
  save.set_state(v1::SAVE_STATE_ENDED);
  save.set_step(120);
  save.set_took_ms(1500);
  save.set_size_bytes(40 << 20);
  save.set_ended_unix_ms(1'700'000'000'000);
  save.set_fate(v1::SAVE_FATE_KEPT);
  return save;
}

v1::Save Failed() {
  v1::Save save = Saved();
  save.set_number(1);
  save.set_fate(v1::SAVE_FATE_UNSPECIFIED);
  save.set_code(static_cast<int>(absl::StatusCode::kPermissionDenied));
  save.set_message("save on rank 1: no\x1b[2J");
  return save;
}

v1::ListCheckpointsResponse All() {
  v1::ListCheckpointsResponse saves;
  for (const v1::Save& save : {Waiting(), Saved(), Failed()}) *saves.add_saves() = save;
  return saves;
}

TEST(SaveViewTest, LineSaysWhatItWaitsForHowFarItIsAndHowItEnded) {
  v1::Save save = Waiting();
  EXPECT_EQ(SaveLine(save), "save 3: waits for the next step");
  save.set_tries(1);
  save.set_last_failure("a rank died");
  EXPECT_EQ(SaveLine(save), "save 3: waits for the next step; try 1 failed: a rank died");
  save = Waiting();
  save.set_state(v1::SAVE_STATE_SAVING);
  save.set_step(7);
  save.set_written_bytes(1 << 20);
  save.set_all_bytes(4 << 20);
  save.set_cancel_requested(true);
  EXPECT_THAT(SaveLine(save), AllOf(HasSubstr("step 7, 1.0 MiB of 4.0 MiB written"),
                                    HasSubstr("is being cancelled")));
  EXPECT_THAT(SaveLine(Saved()), AllOf(HasSubstr("step 120 in /c/two"), HasSubstr("in 1.5s")));
  EXPECT_THAT(SaveLine(Failed()), HasSubstr("PERMISSION_DENIED: save on rank 1: no"));
}

TEST(SaveViewTest, TablesHaveThoseThatEndedOrTheOthersAndAreSafeForATerminal) {
  EXPECT_THAT(PendingTable(All()), AllOf(HasSubstr("/c/three"), Not(HasSubstr("/c/two"))));
  EXPECT_THAT(
      EndedTable(All()),
      AllOf(HasSubstr("/c/two"), HasSubstr("kept"), HasSubstr("2023-11-14 22:13:20"),
            HasSubstr("PERMISSION_DENIED"), Not(HasSubstr("/c/three")), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(PendingTable({}), "no saves wait or run\n");
  EXPECT_EQ(EndedTable({}), "no checkpoints\n");
}

TEST(SaveViewTest, JsonHasTheSameForPrograms) {
  const auto ended = nlohmann::json::parse(SavesJson("gpt", All(), /*ended=*/true));
  EXPECT_EQ(ended["job"], "gpt");
  ASSERT_EQ(ended["saves"].size(), 2);
  EXPECT_EQ(ended["saves"][0]["state"], "SAVED");
  EXPECT_EQ(ended["saves"][0]["bytes"], 40 << 20);
  EXPECT_EQ(ended["saves"][1]["state"], "PERMISSION_DENIED");
  const auto pending = nlohmann::json::parse(SaveJson(Waiting()));
  EXPECT_EQ(pending["waits_for"], "the next step");
  EXPECT_EQ(pending["number"], 3);
}

}  // namespace
}  // namespace tessera::cli
