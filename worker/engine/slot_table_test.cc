#include "worker/engine/slot_table.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// Units 1 and 4 share a slot, 2 and 5, 3 and 6; 0 has a place.
class SlotTableTest : public testing::Test {
 protected:
  void SetUp() override {
    ModelSpec model;
    for (int u = 0; u < 7; ++u) {
      const std::string name = absl::StrCat("u", u);
      model.units.push_back({name, {{name + ".w", {8}, DType::kFp32}}});
    }
    JobConfig config;
    config.world_size = 2;
    config.max_gathered_units = 1;
    ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, config.layout, 2));
    ASSERT_OK_AND_ASSIGN(const JobMemory memory, JobMemory::Create(layout, config));
    ASSERT_OK_AND_ASSIGN(plan_, ParameterPlan::InSlots(layout, config, memory));
    ASSERT_EQ(plan_.num_slots(), 3);
  }
  ParameterPlan plan_;
};

TEST_F(SlotTableTest, WithoutAPlanEverythingIsFree) {
  SlotTable table(nullptr);
  table.Open(1, false);
  EXPECT_FALSE(table.HasSlot(4));
  EXPECT_EQ(table.OtherIn(4), -1);
  EXPECT_TRUE(table.MayGatherAhead(4));
  EXPECT_EQ(table.TakeReadUntil(4), 0u);
  table.Close(1, 7);
  EXPECT_EQ(table.TakeReadUntil(1), 0u);
}

TEST_F(SlotTableTest, UnitThatIsOpenHoldsItsSlotUntilItIsClosed) {
  SlotTable table(&plan_);
  table.Open(1, false);
  EXPECT_EQ(table.OtherIn(4), 1);
  EXPECT_FALSE(table.MayGatherAhead(4));
  EXPECT_TRUE(table.MayGatherAhead(5));
  EXPECT_EQ(table.OtherIn(0), -1);
  table.Close(1, 0);
  EXPECT_EQ(table.OtherIn(4), -1);
  EXPECT_TRUE(table.MayGatherAhead(4));
}

TEST_F(SlotTableTest, UnitThatIsGatheredAgainWhileItIsOpenKeepsTheSlot) {
  SlotTable table(&plan_);
  table.Open(1, false);
  ASSERT_TRUE(table.MayGatherAhead(1)) << "its last forward, then its backward";
  table.GatherAhead(1);
  table.Close(1, 0);
  EXPECT_EQ(table.OtherIn(4), 1);
  table.Open(1, false);
  table.Close(1, 0);
  EXPECT_EQ(table.OtherIn(4), -1);
}

TEST_F(SlotTableTest, WindowInFullPrecisionIsNotGatheredInto) {
  SlotTable table(&plan_);
  table.Open(1, true);
  EXPECT_FALSE(table.MayGatherAhead(1));
  table.Close(1, 0);
  EXPECT_TRUE(table.MayGatherAhead(1));
}

TEST_F(SlotTableTest, WhatWasGatheredAheadCanBeDroppedAndWhatIsOpenCannot) {
  SlotTable table(&plan_);
  table.GatherAhead(1);
  EXPECT_EQ(table.OtherIn(4), 1);
  EXPECT_FALSE(table.IsOpen(1));
  EXPECT_FALSE(table.Drop(4)) << "the other has it";
  EXPECT_TRUE(table.Drop(1));
  EXPECT_EQ(table.OtherIn(4), -1);
  table.Open(2, false);
  EXPECT_FALSE(table.Drop(2));
  table.GatherAhead(3);
  table.Forget();
  EXPECT_TRUE(table.IsOpen(2));
  EXPECT_EQ(table.OtherIn(6), -1);
}

TEST_F(SlotTableTest, WhoFillsTheSlotNextIsToldOnceWhatStillReadsIt) {
  SlotTable table(&plan_);
  table.Open(1, false);
  table.Close(1, 9);
  EXPECT_EQ(table.TakeReadUntil(5), 0u) << "another slot";
  EXPECT_EQ(table.TakeReadUntil(4), 9u);
  EXPECT_EQ(table.TakeReadUntil(4), 0u);
  // The unit's own next window is in the slot already, and the one after that overwrites it.
  table.Open(1, false);
  table.GatherAhead(1);
  table.Close(1, 11);
  EXPECT_EQ(table.TakeReadUntil(1), 0u);
  ASSERT_TRUE(table.Drop(1));
  EXPECT_EQ(table.TakeReadUntil(4), 11u);
}

TEST_F(SlotTableTest, AfterAStepNothingReadsTheWindowsBeforeIt) {
  SlotTable table(&plan_);
  table.Open(1, false);
  table.Close(1, 9);
  table.Forget();
  EXPECT_EQ(table.TakeReadUntil(4), 0u) << "who has the event may be gone";
}

}  // namespace
}  // namespace tessera
