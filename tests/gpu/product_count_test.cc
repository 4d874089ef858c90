#include "tests/gpu/product_count.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace gpu_check {
namespace {

using absl::StatusCode;
using testing::HasSubstr;
using testing::SizeIs;

constexpr double kWanted = 1e-3;

// A machine on which `seconds_of` is what so many products take, and which tells what was tried.
class CountThatTakesTest : public testing::Test {
 protected:
  absl::StatusOr<int64_t> Find(const std::function<double(int64_t count)>& seconds_of,
                               double wanted = kWanted) {
    tried_.clear();
    return CountThatTakes(wanted, [&](int64_t count) -> absl::StatusOr<double> {
      tried_.push_back(count);
      return seconds_of(count);
    });
  }

  std::vector<int64_t> tried_;
};

TEST_F(CountThatTakesTest, IsWithinAQuarterOfTheTimeWhateverAProductTakes) {
  for (const double product : {1e-9, 3e-8, 1e-6, 2.2e-5, 3.3e-4}) {
    for (const double launch : {0.0, 2e-5, 4e-4}) {
      const auto seconds_of = [&](int64_t count) { return launch + product * count; };
      // What takes longer than the most there may be is another test's.
      if (product * kMostProducts < kWanted) continue;
      const auto count = Find(seconds_of);
      ASSERT_OK(count);
      EXPECT_GE(seconds_of(*count), kWanted / 1.25) << product << " " << launch;
      EXPECT_LE(seconds_of(*count), kWanted * 1.25) << product << " " << launch;
      EXPECT_LE(tried_.size(), 7) << product << " " << launch;
    }
  }
}

TEST_F(CountThatTakesTest, IsOneWhereThatTakesLongerAlready) {
  ASSERT_OK_AND_ASSIGN(const int64_t count, Find([](int64_t n) { return 0.5 * n; }));
  EXPECT_EQ(count, 1);
  EXPECT_THAT(tried_, SizeIs(1));
}

TEST_F(CountThatTakesTest, IsTheNearestWhereOneMoreWouldBeTooMany) {
  ASSERT_OK_AND_ASSIGN(int64_t count, Find([](int64_t n) { return 0.7 * kWanted * n; }));
  EXPECT_EQ(count, 2) << "1.4 times as long; one is farther from it";
  ASSERT_OK_AND_ASSIGN(count, Find([](int64_t n) { return (0.75 + 0.75 * (n - 1)) * kWanted; }));
  EXPECT_EQ(count, 1) << "a third more time would do; two take half as much again";
}

TEST_F(CountThatTakesTest, ClockThatSeesNothingOfAnyEndsAtTheMostThereMayBe) {
  for (const double nothing : {0.0, -1.0, std::nan("")}) {
    const auto count = Find([&](int64_t) { return nothing; });
    EXPECT_THAT(count, StatusIs(StatusCode::kFailedPrecondition, HasSubstr("1 took ")));
    EXPECT_EQ(tried_.back(), kMostProducts);
    EXPECT_LE(tried_.size(), kMostCountTries);
  }
  // And one that sees nothing of few.
  ASSERT_OK_AND_ASSIGN(const int64_t count,
                       Find([](int64_t n) { return n < 1000 ? 0 : 1e-6 * n; }));
  EXPECT_GE(count, 800);
  EXPECT_LE(count, 1250);
}

TEST_F(CountThatTakesTest, ProductsThatAreAllTooShortTogetherAreAnError) {
  EXPECT_THAT(Find([](int64_t n) { return 1e-12 * n; }),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("65536 took 6.5536e-08 s")));
}

TEST_F(CountThatTakesTest, TimesThatFallWithTheCountOrJumpEndAfterTheirTries) {
  EXPECT_THAT(Find([](int64_t n) { return 1e-6 / n; }),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("65536 took")));
  EXPECT_LE(tried_.size(), kMostCountTries);
  EXPECT_THAT(Find([](int64_t n) { return n % 2 == 1 ? 1e-5 : 0.5; }),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("16 took 0.5 s")));
  EXPECT_LE(tried_.size(), kMostCountTries);
  int tries = 0;
  EXPECT_THAT(Find([&](int64_t) { return ++tries % 2 == 0 ? 1.0 : 1e-6; }),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("no number of products takes")));
  EXPECT_LE(tries, kMostCountTries);
}

TEST_F(CountThatTakesTest, NearestOfTimesThatJumpIsTakenIfItIsWithinTwice) {
  // By turns far too long and 1.8 times too long.
  int tries = 0;
  std::vector<double> times;
  const auto count = Find([&](int64_t) {
    times.push_back(++tries % 2 == 0 ? 1.8 * kWanted : 1e-7);
    return times.back();
  });
  ASSERT_OK(count);
  const auto at = std::find(times.begin(), times.end(), 1.8 * kWanted) - times.begin();
  EXPECT_EQ(*count, tried_[at]) << "the first of those that were the nearest";
}

TEST_F(CountThatTakesTest, WhatFailsIsReturnedAndWhatIsNoTimeIsRefused) {
  int tries = 0;
  EXPECT_THAT(CountThatTakes(kWanted,
                             [&](int64_t) -> absl::StatusOr<double> {
                               if (++tries == 2) return absl::InternalError("cublasGemmEx said 13");
                               return 1e-6;
                             }),
              StatusIs(StatusCode::kInternal, HasSubstr("cublasGemmEx said 13")));
  EXPECT_EQ(tries, 2);
  for (const double none : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(
        Find([](int64_t n) { return 1e-6 * n; }, none),
        StatusIs(StatusCode::kInvalidArgument, HasSubstr("it has to be above 0, and finite")));
    EXPECT_THAT(tried_, SizeIs(0));
  }
}

TEST(ProductsOfPassTest, AreAllOfThemAndDifferByOneAtMost) {
  for (const int num_passes : {1, 3, 72}) {
    for (const int64_t count :
         {int64_t{1}, int64_t{2}, int64_t{71}, int64_t{72}, int64_t{100}, kMostProducts}) {
      int64_t sum = 0;
      for (int pass = 0; pass < num_passes; ++pass) {
        const int64_t here = ProductsOfPass(count, pass, num_passes);
        EXPECT_GE(here, count / num_passes);
        EXPECT_LE(here, count / num_passes + 1);
        sum += here;
      }
      EXPECT_EQ(sum, count) << num_passes;
    }
  }
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
