// Conformance: FLAT-7, FLAT-8, FLAT-9 (shard metadata) and A0.2 (padding is never observable).
#include "layout/shard_view.h"

#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ParameterShard kAbsent = {};

FlatLayout MakeLayout(const std::vector<TensorSpec>& parameters, int64_t parameter_alignment_bytes,
                      DType alignment_dtype) {
  LayoutOptions options;
  options.parameter_alignment_bytes = parameter_alignment_bytes;
  options.shard_alignment_bytes = 0;
  options.alignment_dtype = alignment_dtype;
  return FlatLayout::Create({"mlp", parameters}, options).value();
}

FlatLayout ThreeLinear(int64_t parameter_alignment_bytes) {
  return MakeLayout(
      {MakeSpec("0.weight", {7, 3}), MakeSpec("1.weight", {5, 7}), MakeSpec("2.weight", {5, 5})},
      parameter_alignment_bytes, DType::kFp32);
}

// Of a range with an inclusive end, as the conformance tables have it.
std::vector<ParameterShard> ShardsIn(const FlatLayout& layout, int64_t begin, int64_t last) {
  return ComputeParameterShards(layout, {begin, last + 1});
}

// In the shard at `offset`, the parameter's elements [start, end], inclusive.
ParameterShard Part(int64_t offset, int64_t start, int64_t end) {
  return {true, offset, end - start + 1, start, end};
}

TEST(ShardViewTest, UnalignedMetadataOfAnyRange) {  // FLAT-7
  const FlatLayout layout = ThreeLinear(0);
  EXPECT_THAT(ShardsIn(layout, 0, 0), ElementsAre(Part(0, 0, 0), kAbsent, kAbsent));
  EXPECT_THAT(ShardsIn(layout, 0, 20), ElementsAre(Part(0, 0, 20), kAbsent, kAbsent));
  EXPECT_THAT(ShardsIn(layout, 0, 21), ElementsAre(Part(0, 0, 20), Part(21, 0, 0), kAbsent));
  EXPECT_THAT(ShardsIn(layout, 22, 30), ElementsAre(kAbsent, Part(0, 1, 9), kAbsent));
  EXPECT_THAT(ShardsIn(layout, 20, 56),
              ElementsAre(Part(0, 20, 20), Part(1, 0, 34), Part(36, 0, 0)));
  EXPECT_THAT(ShardsIn(layout, 56, 80), ElementsAre(kAbsent, kAbsent, Part(0, 0, 24)));
}

TEST(ShardViewTest, AlignedFullPrecisionMetadata) {  // FLAT-8
  const FlatLayout layout = ThreeLinear(16);
  EXPECT_THAT(ShardsIn(layout, 0, 42), ElementsAre(Part(0, 0, 20), Part(24, 0, 18), kAbsent));
  EXPECT_THAT(ShardsIn(layout, 43, 85), ElementsAre(kAbsent, Part(0, 19, 34), Part(17, 0, 24)));
  EXPECT_THAT(ShardsIn(layout, 21, 23), ElementsAre(kAbsent, kAbsent, kAbsent));
  EXPECT_EQ(ShardMap::Create(layout, 2)->shard_numel(), 43);
}

TEST(ShardViewTest, AlignedMixedPrecisionMetadata) {  // FLAT-9
  const FlatLayout layout = MakeLayout(
      {MakeSpec("0.weight", {5, 2}), MakeSpec("1.weight", {5, 5}), MakeSpec("2.weight", {3, 5})},
      16, DType::kFp16);
  EXPECT_THAT(ShardsIn(layout, 0, 31), ElementsAre(Part(0, 0, 9), Part(16, 0, 15), kAbsent));
  EXPECT_THAT(ShardsIn(layout, 32, 63), ElementsAre(kAbsent, Part(0, 16, 24), Part(16, 0, 14)));
  EXPECT_THAT(ShardsIn(layout, 0, 44), ElementsAre(Part(0, 0, 9), Part(16, 0, 24), kAbsent));
  EXPECT_EQ(ShardMap::Create(layout, 2)->shard_numel(), 32);
}

TEST(ShardViewTest, LastRankOwnsPadding) {
  const FlatLayout layout = ThreeLinear(16);
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 2));
  ASSERT_OK_AND_ASSIGN(const ShardView view, ShardView::Create(layout, shards, Rank(1)));
  EXPECT_THAT(view.slices(), ElementsAre(ParameterSlice{1, {19, 35}, {0, 16}},
                                         ParameterSlice{2, {0, 25}, {17, 42}}));
  EXPECT_EQ(view.padding_elements(), 2);  // One in the gap, one at the end.
}

TEST(ShardViewTest, ShardOfOnlyPaddingHoldsNoParameter) {
  const FlatLayout layout = MakeLayout({MakeSpec("w", {5})}, 16, DType::kFp32);
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 4));
  ASSERT_OK_AND_ASSIGN(const ShardView view, ShardView::Create(layout, shards, Rank(3)));
  EXPECT_THAT(view.parameters(), ElementsAre(kAbsent));
  EXPECT_TRUE(view.slices().empty());
  EXPECT_EQ(view.padding_elements(), 2);
}

TEST(ShardViewTest, EmptyParameterIsInTheShardAroundItAndHasNoSlice) {
  const FlatLayout layout =
      MakeLayout({MakeSpec("e", {0}), MakeSpec("w", {4}), MakeSpec("f", {0, 2}), MakeSpec("v", {4}),
                  MakeSpec("g", {0})},
                 0, DType::kFp32);
  EXPECT_THAT(ComputeParameterShards(layout, {0, 8}),
              ElementsAre(kAbsent, Part(0, 0, 3), Part(4, 0, -1), Part(4, 0, 3), kAbsent));
  EXPECT_THAT(ComputeParameterShards(layout, {0, 4}),
              ElementsAre(kAbsent, Part(0, 0, 3), kAbsent, kAbsent, kAbsent));
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 1));
  ASSERT_OK_AND_ASSIGN(const ShardView view, ShardView::Create(layout, shards, Rank(0)));
  EXPECT_EQ(view.slices().size(), 2);
}

TEST(ShardViewTest, EmptyRangeHoldsNothing) {
  for (const ParameterShard& shard : ComputeParameterShards(ThreeLinear(0), {7, 7})) {
    EXPECT_EQ(shard, kAbsent);
  }
}

TEST(ShardViewTest, RankOutsideTheWorldIsInvalid) {
  const FlatLayout layout = ThreeLinear(0);
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 2));
  for (int64_t rank : {int64_t{-1}, int64_t{2}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(ShardView::Create(layout, shards, Rank(rank)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[0, 2)")));
  }
}

// What the seeds' metadata of `parameter` in [begin, end) must be, by looking at each element.
ParameterShard LookAtEachElement(const ReferenceLayout& reference, int64_t parameter, int64_t numel,
                                 int64_t begin, int64_t end) {
  if (numel == 0) {
    const int64_t first = reference.first_element[parameter];
    return begin < first && first < end ? Part(first - begin, 0, -1) : kAbsent;
  }
  ParameterShard shard;
  for (int64_t i = begin; i < end; ++i) {
    if (reference.cells[i].parameter != parameter) continue;
    if (!shard.in_shard) shard = Part(i - begin, reference.cells[i].index, -1);
    shard.intra_param_end = reference.cells[i].index;
    shard.numel_in_shard = shard.intra_param_end - shard.intra_param_start + 1;
  }
  return shard;
}

TEST(ShardViewPropertyTest, AgreesWithTheLayoutElementByElement) {
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    const RandomCase random_case = MakeRandomCase(&random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", random_case.DebugString()));
    const ReferenceLayout reference =
        LayOutSlowly(random_case.unit, random_case.options, random_case.world_size);
    ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                         FlatLayout::Create(random_case.unit, random_case.options));
    ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, random_case.world_size));
    for (int64_t rank = 0; rank < random_case.world_size; ++rank) {
      ASSERT_OK_AND_ASSIGN(const ShardView view, ShardView::Create(layout, shards, Rank(rank)));
      ASSERT_EQ(view.parameters().size(), layout.parameters().size());
      for (size_t i = 0; i < layout.parameters().size(); ++i) {
        EXPECT_EQ(view.parameters()[i],
                  LookAtEachElement(reference, i, layout.parameters()[i].numel, view.range().begin,
                                    view.range().end))
            << "rank " << rank << ", parameter " << i;
      }
    }
    if (HasFailure()) return;
  }
}

// Slices and padding together are the shard: each element once, and each the right one.
TEST(ShardViewPropertyTest, SlicesCoverEveryElementButPaddingOnce) {
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    const RandomCase random_case = MakeRandomCase(&random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", random_case.DebugString()));
    const ReferenceLayout reference =
        LayOutSlowly(random_case.unit, random_case.options, random_case.world_size);
    ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                         FlatLayout::Create(random_case.unit, random_case.options));
    ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, random_case.world_size));
    for (int64_t rank = 0; rank < random_case.world_size; ++rank) {
      ASSERT_OK_AND_ASSIGN(const ShardView view, ShardView::Create(layout, shards, Rank(rank)));
      int64_t num_real = 0;
      int64_t covered_up_to = 0;
      for (const ParameterSlice& slice : view.slices()) {
        ASSERT_GT(slice.in_shard.size(), 0);
        ASSERT_EQ(slice.in_shard.size(), slice.in_parameter.size());
        ASSERT_GE(slice.in_shard.begin, covered_up_to);
        covered_up_to = slice.in_shard.end;
        num_real += slice.in_shard.size();
        for (int64_t i = 0; i < slice.in_shard.size(); ++i) {
          const Cell& cell = reference.cells[view.range().begin + slice.in_shard.begin + i];
          ASSERT_EQ(cell.parameter, slice.parameter_index);
          ASSERT_EQ(cell.index, slice.in_parameter.begin + i);
        }
      }
      int64_t num_expected = 0;
      for (int64_t i = view.range().begin; i < view.range().end; ++i) {
        num_expected += reference.cells[i].parameter >= 0 ? 1 : 0;
      }
      EXPECT_EQ(num_real, num_expected);
      EXPECT_EQ(view.padding_elements(), view.range().size() - num_expected);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera
