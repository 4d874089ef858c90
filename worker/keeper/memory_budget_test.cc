#include "worker/keeper/memory_budget.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(MemoryBudgetTest, WhatDoesNotFitIsRefusedWithTheBytesWantedAndFreeAndTakesNothing) {
  MemoryBudget budget(int64_t{10} << 30);
  ASSERT_OK_AND_ASSIGN(const auto first, budget.Reserve("job 'a'", int64_t{7} << 30));
  EXPECT_THAT(budget.Reserve("job 'b'", int64_t{4} << 30),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("job 'b' needs 4.0 GiB"),
                             HasSubstr("3.0 GiB of 10.0 GiB are free"))));
  EXPECT_EQ(budget.free_bytes(), int64_t{3} << 30);
  EXPECT_OK(budget.Reserve("job 'c'", int64_t{3} << 30));
}

TEST(MemoryBudgetTest, WhatEndsIsGivenBackOnce) {
  MemoryBudget budget(100);
  {
    ASSERT_OK_AND_ASSIGN(MemoryBudget::Reservation held, budget.Reserve("job 'a'", 60));
    MemoryBudget::Reservation moved = std::move(held);
    EXPECT_EQ(budget.free_bytes(), 40);
    ASSERT_OK_AND_ASSIGN(MemoryBudget::Reservation other, budget.Reserve("job 'b'", 30));
    other = std::move(moved);
  }
  EXPECT_EQ(budget.free_bytes(), 100);
}

TEST(MemoryBudgetTest, MachineHasMemory) {
  EXPECT_GT(MachineMemoryBytes(), int64_t{64} << 20);
  EXPECT_LT(MachineMemoryBytes(), int64_t{1} << 60);
}

TEST(MemoryBudgetTest, BytesAreToldInTheLargestUnit) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(int64_t{7} << 38), "1.8 TiB");
}

}  // namespace
}  // namespace tessera
