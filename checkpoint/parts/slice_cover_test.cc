#include "checkpoint/parts/slice_cover.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<std::vector<HeldSlice>> Cover(int64_t numel, std::vector<HeldSlice> slices) {
  return CoverOnce("w", numel, std::move(slices),
                   [](int holder) { return absl::StrCat("part", holder); });
}

TEST(SliceCoverTest, ReplicasAreTakenOnceAndEmptySlicesNot) {
  ASSERT_OK_AND_ASSIGN(const auto taken,
                       Cover(8, {{2, 4, 4, 7}, {0, 0, 4, 5}, {1, 4, 4, 7}, {3, 8, 0, 9}}));
  ASSERT_EQ(taken.size(), 2);
  EXPECT_EQ(taken[0].holder, 0);
  EXPECT_EQ(taken[1].holder, 1);
  ASSERT_OK_AND_ASSIGN(const auto none, Cover(0, {}));
  EXPECT_TRUE(none.empty());
}

TEST(SliceCoverTest, HolesOverlapsAndReplicasThatDifferAreRefusedByTensorRangeAndHolder) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Cover(8, {}), StatusIs(kInvalid, HasSubstr("'w': elements [0, 8) are nowhere")));
  EXPECT_THAT(Cover(8, {{0, 0, 4, 1}, {1, 5, 3, 1}}),
              StatusIs(kInvalid, HasSubstr("'w': elements [4, 5) are nowhere")));
  EXPECT_THAT(Cover(8, {{0, 0, 7, 1}}),
              StatusIs(kInvalid, HasSubstr("'w': elements [7, 8) are nowhere")));
  EXPECT_THAT(Cover(8, {{0, 0, 4, 1}, {1, 3, 5, 1}}),
              StatusIs(kInvalid,
                       AllOf(HasSubstr("'w': elements [3, 4)"), HasSubstr("part0 and in part1"))));
  EXPECT_THAT(Cover(8, {{0, 0, 8, 1}, {1, 0, 4, 1}}),
              StatusIs(kInvalid, HasSubstr("'w': elements [0, 4)")));
  EXPECT_THAT(Cover(8, {{0, 0, 8, 1}, {1, 0, 8, 2}}),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("'w': elements [0, 8)"), HasSubstr("part0 and in part1"))));
  EXPECT_THAT(Cover(8, {{0, 4, 5, 1}}), StatusIs(kInvalid, HasSubstr("are not in its 8")));
  EXPECT_THAT(Cover(8, {{0, -1, 5, 1}}), StatusIs(kInvalid, HasSubstr("are not in its 8")));
}

TEST(SliceCoverTest, RandomCutsCoverEachElementOnceAndWithoutAnyOneOfThemDoNot) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const int64_t numel = 1 + random() % 40;
    std::vector<HeldSlice> slices;
    for (int64_t at = 0; at < numel;) {
      const int64_t count = 1 + random() % (numel - at);
      slices.push_back({static_cast<int>(slices.size()), at, count, 1});
      at += count;
    }
    const std::vector<HeldSlice> once = slices;
    for (const HeldSlice& slice : once) {
      if (random() % 2 == 0) slices.push_back(slice);
    }
    std::shuffle(slices.begin(), slices.end(), random);
    ASSERT_OK_AND_ASSIGN(const auto taken, Cover(numel, slices));
    EXPECT_EQ(taken.size(), once.size());
    const size_t gone = random() % once.size();
    std::vector<HeldSlice> fewer = once;
    fewer.erase(fewer.begin() + gone);
    EXPECT_THAT(Cover(numel, fewer),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("[", once[gone].begin_elements, ", ",
                                                once[gone].begin_elements + once[gone].count,
                                                ") are nowhere"))));
  }
}

}  // namespace
}  // namespace tessera
