#include "layout/reshard_plan.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayoutOptions Unpadded() {
  LayoutOptions options;
  options.parameter_alignment_bytes = 0;
  options.shard_alignment_bytes = 0;
  return options;
}

TEST(ReshardPlanTest, GrowingFromTwoRanksToThree) {
  const UnitSpec unit = {"u", {MakeSpec("a", {10}), MakeSpec("b", {6})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, Unpadded()));
  ASSERT_OK_AND_ASSIGN(const ShardMap two, ShardMap::Create(layout, 2));
  ASSERT_OK_AND_ASSIGN(const ShardMap three, ShardMap::Create(layout, 3));
  ASSERT_OK_AND_ASSIGN(const std::vector<ShardCopy> plan, PlanReshard(layout, two, three));
  EXPECT_THAT(plan, ElementsAre(ShardCopy{Rank(0), {0, 6}, Rank(0), {0, 6}},
                                ShardCopy{Rank(0), {6, 8}, Rank(1), {0, 2}},
                                ShardCopy{Rank(1), {0, 4}, Rank(1), {2, 6}},
                                ShardCopy{Rank(1), {4, 8}, Rank(2), {0, 4}}));
}

TEST(ReshardPlanTest, SameWorldSizeCopiesEachShardToItself) {
  const UnitSpec unit = {"u", {MakeSpec("a", {8})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, Unpadded()));
  ASSERT_OK_AND_ASSIGN(const ShardMap two, ShardMap::Create(layout, 2));
  ASSERT_OK_AND_ASSIGN(const std::vector<ShardCopy> plan, PlanReshard(layout, two, two));
  EXPECT_THAT(plan, ElementsAre(ShardCopy{Rank(0), {0, 4}, Rank(0), {0, 4}},
                                ShardCopy{Rank(1), {0, 4}, Rank(1), {0, 4}}));
}

TEST(ReshardPlanTest, MapOfAShorterLayoutIsInvalid) {
  ASSERT_OK_AND_ASSIGN(const FlatLayout small,
                       FlatLayout::Create({"s", {MakeSpec("a", {4})}}, Unpadded()));
  ASSERT_OK_AND_ASSIGN(const FlatLayout large,
                       FlatLayout::Create({"l", {MakeSpec("a", {9})}}, Unpadded()));
  ASSERT_OK_AND_ASSIGN(const ShardMap of_small, ShardMap::Create(small, 2));
  ASSERT_OK_AND_ASSIGN(const ShardMap of_large, ShardMap::Create(large, 2));
  EXPECT_THAT(PlanReshard(large, of_small, of_large),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"l\"")));
  EXPECT_THAT(PlanReshard(large, of_large, of_small),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard map of 4")));
}

TEST(ReshardPlanTest, TrillionsOfElementsNeedAHandfulOfCopies) {
  const UnitSpec unit = {"u", {MakeSpec("w", {1000000, 1000000})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, LayoutOptions()));
  ASSERT_OK_AND_ASSIGN(const ShardMap from, ShardMap::Create(layout, 16));
  ASSERT_OK_AND_ASSIGN(const ShardMap to, ShardMap::Create(layout, 7));
  ASSERT_OK_AND_ASSIGN(const std::vector<ShardCopy> plan, PlanReshard(layout, from, to));
  EXPECT_LE(plan.size(), 16 + 7);
  int64_t num_moved = 0;
  for (const ShardCopy& copy : plan) num_moved += copy.source_range.size();
  EXPECT_EQ(num_moved, 1000000000000);
}

TEST(ReshardPlanTest, HundredThousandParametersArePlanned) {
  UnitSpec unit = {"u", {}};
  for (int i = 0; i < 100000; ++i) {
    unit.parameters.push_back(MakeSpec(absl::StrCat("p", i), {i % 5, 3}));
  }
  ASSERT_OK_AND_ASSIGN(const FlatLayout packed, FlatLayout::Create(unit, Unpadded()));
  ASSERT_OK_AND_ASSIGN(const ShardMap from, ShardMap::Create(packed, 16));
  ASSERT_OK_AND_ASSIGN(const ShardMap to, ShardMap::Create(packed, 15));
  ASSERT_OK_AND_ASSIGN(const std::vector<ShardCopy> plan, PlanReshard(packed, from, to));
  EXPECT_EQ(plan.size(), 30);  // Neighbours without a gap are copied together.
}

// Each maximal run of elements without padding that goes from one rank to one rank is one copy.
int64_t CountRuns(const ReferenceLayout& reference, int64_t from_numel, int64_t to_numel) {
  int64_t num_runs = 0;
  std::pair<int64_t, int64_t> last = {-1, -1};
  for (int64_t i = 0; i < reference.end_elements; ++i) {
    std::pair<int64_t, int64_t> ranks = {-1, -1};
    if (reference.cells[i].parameter >= 0) ranks = {i / from_numel, i / to_numel};
    if (ranks.first >= 0 && ranks != last) ++num_runs;
    last = ranks;
  }
  return num_runs;
}

TEST(ReshardPlanPropertyTest, MovesEachElementOnceAndNoPadding) {
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    const RandomCase random_case = MakeRandomCase(&random);
    const int64_t new_world_size = 1 + static_cast<int64_t>(random() % 16);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", random_case.DebugString(), ", to ",
                              new_world_size, " ranks"));
    const ReferenceLayout from_reference =
        LayOutSlowly(random_case.unit, random_case.options, random_case.world_size);
    const ReferenceLayout to_reference =
        LayOutSlowly(random_case.unit, random_case.options, new_world_size);
    ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                         FlatLayout::Create(random_case.unit, random_case.options));
    ASSERT_OK_AND_ASSIGN(const ShardMap from, ShardMap::Create(layout, random_case.world_size));
    ASSERT_OK_AND_ASSIGN(const ShardMap to, ShardMap::Create(layout, new_world_size));
    ASSERT_OK_AND_ASSIGN(const std::vector<ShardCopy> plan, PlanReshard(layout, from, to));
    // For every element of the new shards, which element of the flat parameter arrived.
    std::vector<int64_t> arrived(to_reference.cells.size(), -1);
    for (const ShardCopy& copy : plan) {
      ASSERT_EQ(copy.source_range.size(), copy.destination_range.size());
      for (int64_t i = 0; i < copy.source_range.size(); ++i) {
        const int64_t source =
            copy.source.value() * from_reference.shard_numel + copy.source_range.begin + i;
        const int64_t destination =
            copy.destination.value() * to_reference.shard_numel + copy.destination_range.begin + i;
        ASSERT_EQ(arrived.at(destination), -1) << "copied twice";
        arrived.at(destination) = source;
      }
    }
    for (size_t i = 0; i < arrived.size(); ++i) {
      const bool is_padding = to_reference.cells[i].parameter < 0;
      ASSERT_EQ(arrived[i], is_padding ? -1 : static_cast<int64_t>(i)) << "element " << i;
    }
    const int64_t num_runs =
        layout.unpadded_numel() == 0
            ? 0
            : CountRuns(from_reference, from_reference.shard_numel, to_reference.shard_numel);
    EXPECT_EQ(plan.size(), num_runs);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera
