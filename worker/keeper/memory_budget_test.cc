#include "worker/keeper/memory_budget.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(MemoryBudgetTest, WhatDoesNotFitIsRefusedWithTheBytesWantedAndFreeAndTakesNothing) {
  MemoryBudget budget(int64_t{10} << 30, [] { return INT64_MAX; });
  ASSERT_OK_AND_ASSIGN(const auto first, budget.Reserve("job 'a'", int64_t{7} << 30));
  EXPECT_THAT(budget.Reserve("job 'b'", int64_t{4} << 30),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("job 'b' needs 4.0 GiB"),
                             HasSubstr("3.0 GiB of 10.0 GiB are free"))));
  EXPECT_EQ(budget.free_bytes(), int64_t{3} << 30);
  EXPECT_OK(budget.Reserve("job 'c'", int64_t{3} << 30));
}

TEST(MemoryBudgetTest, WhatEndsIsGivenBackOnce) {
  MemoryBudget budget(100, [] { return INT64_MAX; });
  {
    ASSERT_OK_AND_ASSIGN(MemoryBudget::Reservation held, budget.Reserve("job 'a'", 60));
    MemoryBudget::Reservation moved = std::move(held);
    EXPECT_EQ(budget.free_bytes(), 40);
    ASSERT_OK_AND_ASSIGN(MemoryBudget::Reservation other, budget.Reserve("job 'b'", 30));
    other = std::move(moved);
  }
  EXPECT_EQ(budget.free_bytes(), 100);
}

TEST(MemoryBudgetTest, WhatOthersUseOfTheMachineIsNotPromised) {
  int64_t available = 50;
  MemoryBudget budget(100, [&] { return available; });
  ASSERT_OK_AND_ASSIGN(auto first, budget.Reserve("job 'a'", 30));
  // It may take its 30 of the 50 yet.
  EXPECT_THAT(budget.Reserve("job 'b'", 25),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("job 'b' needs 25 B"), HasSubstr("only 20 B are"))));
  first.SetTaken();
  available = 20;
  ASSERT_OK_AND_ASSIGN(auto second, budget.Reserve("job 'b'", 20));
  EXPECT_EQ(budget.free_bytes(), 50);
}

TEST(MemoryBudgetTest, WhatWasTakenBeforeCountsEvenBeyondTheBudget) {
  MemoryBudget budget(100, [] { return int64_t{1000}; });
  {
    const auto held = budget.ReserveTaken(120);
    EXPECT_EQ(budget.free_bytes(), 0);
    EXPECT_TRUE(absl::IsResourceExhausted(budget.Reserve("job 'b'", 1).status()));
  }
  EXPECT_OK(budget.Reserve("job 'b'", 100));
}

}  // namespace
}  // namespace tessera
