// Conformance: FLAT-1, FLAT-4 and A0.2 (offsets, padding, sharing).
#include "layout/flat_layout.h"

#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "layout/model_layout.h"
#include "layout/reference_layout.h"
#include "layout/shard_map.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// The layout of the seeds: shards cut at single elements.
LayoutOptions SeedOptions(int64_t parameter_alignment_bytes, DType dtype = DType::kFp32) {
  LayoutOptions options;
  options.parameter_alignment_bytes = parameter_alignment_bytes;
  options.shard_alignment_bytes = 0;
  options.alignment_dtype = dtype;
  return options;
}

std::vector<int64_t> Offsets(const FlatLayout& layout) {
  std::vector<int64_t> offsets;
  for (const PlacedParameter& parameter : layout.parameters()) {
    offsets.push_back(parameter.offset_elements);
  }
  return offsets;
}

const UnitSpec kThreeLinear = {
    "mlp", {MakeSpec("a", {7, 3}), MakeSpec("b", {5, 7}), MakeSpec("c", {5, 5})}};

TEST(FlatLayoutTest, WithoutAlignmentNothingLiesBetweenParameters) {  // FLAT-7
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(kThreeLinear, SeedOptions(0)));
  EXPECT_THAT(Offsets(layout), ElementsAre(0, 21, 56));
  EXPECT_EQ(layout.end_elements(), 81);
  EXPECT_EQ(layout.unpadded_numel(), 81);
}

TEST(FlatLayoutTest, AlignedParametersStartOnSixteenBytes) {  // FLAT-8
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(kThreeLinear, SeedOptions(16)));
  EXPECT_THAT(Offsets(layout), ElementsAre(0, 24, 60));
  EXPECT_EQ(layout.end_elements(), 85);
  EXPECT_EQ(layout.unpadded_numel(), 81);  // FLAT-1
}

TEST(FlatLayoutTest, AlignmentCountsElementsOfTheComputeDType) {  // FLAT-9
  const UnitSpec unit = {"mlp",
                         {MakeSpec("a", {5, 2}), MakeSpec("b", {5, 5}), MakeSpec("c", {3, 5})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                       FlatLayout::Create(unit, SeedOptions(16, DType::kFp16)));
  EXPECT_THAT(Offsets(layout), ElementsAre(0, 16, 48));
  EXPECT_EQ(layout.end_elements(), 63);
}

TEST(FlatLayoutTest, SharedParametersTakeNoRoom) {  // FLAT-4
  UnitSpec unit = {"u", {MakeSpec("embed", {3, 3}), MakeSpec("head", {3, 3}), MakeSpec("b", {2})}};
  unit.parameters[1].shared_with = "embed";
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, SeedOptions(16)));
  EXPECT_EQ(layout.unpadded_numel(), 11);
  EXPECT_THAT(Offsets(layout), ElementsAre(0, 12));
  ASSERT_EQ(layout.aliases().size(), 1);
  EXPECT_EQ(layout.aliases()[0].name, "head");
  EXPECT_EQ(layout.aliases()[0].primary, "embed");
}

TEST(FlatLayoutTest, ScalarsAndEmptyParametersArePlaced) {
  const UnitSpec unit = {
      "u", {MakeSpec("e", {0, 4}), MakeSpec("s", {}), MakeSpec("f", {0}), MakeSpec("t", {})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, SeedOptions(16)));
  EXPECT_THAT(Offsets(layout), ElementsAre(0, 0, 4, 4));
  EXPECT_EQ(layout.end_elements(), 5);
  EXPECT_EQ(layout.unpadded_numel(), 2);
}

TEST(FlatLayoutTest, AlignmentThatCutsElementsIsInvalid) {
  for (int64_t bytes : {-16, 2, 6}) {
    EXPECT_THAT(FlatLayout::Create(kThreeLinear, SeedOptions(bytes)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter alignment")));
    LayoutOptions options;
    options.shard_alignment_bytes = bytes;
    EXPECT_THAT(FlatLayout::Create(kThreeLinear, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard alignment")));
  }
  EXPECT_THAT(FlatLayout::Create(kThreeLinear, SeedOptions(16, DType::kInt32)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("int32")));
}

TEST(FlatLayoutTest, UnitWithoutParametersIsInvalid) {  // FLAT-2, FLAT-3
  EXPECT_THAT(FlatLayout::Create({"u", {}}, LayoutOptions()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no parameters")));
}

TEST(FlatLayoutTest, TrillionsOfElementsAreExact) {
  const int64_t million = 1000000;
  const UnitSpec unit = {"u", {MakeSpec("s", {}), MakeSpec("w", {million, million})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, SeedOptions(16)));
  EXPECT_EQ(layout.end_elements(), 4 + million * million);
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 7));
  EXPECT_EQ(shards.shard_numel(), 142857142858);
  EXPECT_EQ(shards.OwnerOf(million * million), Rank(6));
}

TEST(FlatLayoutTest, PaddingThatOverflowsIsInvalid) {
  const UnitSpec unit = {"u", {MakeSpec("w", {kMax}), MakeSpec("e", {0})}};
  EXPECT_OK(FlatLayout::Create(unit, SeedOptions(0)));
  EXPECT_THAT(FlatLayout::Create(unit, SeedOptions(16)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overflows")));
}

TEST(ShardMapTest, PaddedSizeThatOverflowsIsInvalid) {
  const UnitSpec unit = {"u", {MakeSpec("w", {kMax})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, SeedOptions(0)));
  EXPECT_OK(ShardMap::Create(layout, 1));
  EXPECT_THAT(ShardMap::Create(layout, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overflow")));
  ASSERT_OK_AND_ASSIGN(const FlatLayout aligned, FlatLayout::Create(unit, LayoutOptions()));
  EXPECT_THAT(ShardMap::Create(aligned, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overflow")));
}

TEST(ShardMapTest, WorldSizeBelowOneIsInvalid) {
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(kThreeLinear, SeedOptions(0)));
  for (int64_t world_size : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(ShardMap::Create(layout, world_size),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world size")));
  }
}

TEST(ShardMapTest, TrailingRanksMayOwnOnlyPadding) {
  const UnitSpec unit = {"u", {MakeSpec("w", {5})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, SeedOptions(0)));
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 4));
  EXPECT_EQ(shards.shard_numel(), 2);
  EXPECT_EQ(shards.padded_numel(), 8);
  EXPECT_EQ(shards.RangeOf(Rank(3)), (ElementRange{6, 8}));
}

TEST(ShardMapTest, RanksBeyondTheSlicesAreReplicas) {
  const FlatLayout flat = FlatLayout::Create({"u", {MakeSpec("w", {10})}}, LayoutOptions()).value();
  const ShardMap shards = ShardMap::Create(flat, 2).value();
  EXPECT_EQ(shards.RangeOf(Rank(2)), shards.RangeOf(Rank(0)));
  EXPECT_EQ(shards.RangeOf(Rank(5)), shards.RangeOf(Rank(1)));
  EXPECT_FALSE(shards.IsReplica(Rank(1)));
  EXPECT_TRUE(shards.IsReplica(Rank(2)));
  EXPECT_EQ(shards.OwnerOf(shards.RangeOf(Rank(5)).begin), Rank(1));
}

TEST(ShardMapTest, EverySliceStartsOnTheShardAlignment) {
  LayoutOptions options;
  options.shard_alignment_bytes = 128;
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(kThreeLinear, options));
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 2));
  EXPECT_EQ(shards.shard_numel(), 64);  // 43 rounded up to 32 fp32.
  options.alignment_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(const FlatLayout bf16, FlatLayout::Create(kThreeLinear, options));
  EXPECT_EQ(ShardMap::Create(bf16, 3)->shard_numel(), 64);  // 64 bf16.
}

TEST(ShardMapTest, UnitOfEmptyParametersHasEmptyShards) {
  const UnitSpec unit = {"u", {MakeSpec("w", {0, 5})}};
  ASSERT_OK_AND_ASSIGN(const FlatLayout layout, FlatLayout::Create(unit, LayoutOptions()));
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, 4));
  EXPECT_EQ(shards.shard_numel(), 0);
  EXPECT_TRUE(shards.RangeOf(Rank(3)).empty());
}

TEST(ElementRangeTest, DisjointRangesIntersectInAnEmptyRange) {
  EXPECT_EQ(Intersect({0, 5}, {3, 9}), (ElementRange{3, 5}));
  EXPECT_EQ(Intersect({0, 5}, {5, 9}), (ElementRange{5, 5}));
  EXPECT_EQ(Intersect({7, 9}, {0, 5}), (ElementRange{7, 7}));
}

TEST(FlatLayoutPropertyTest, AgreesWithTheLayoutElementByElement) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const RandomCase random_case = MakeRandomCase(&random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", random_case.DebugString()));
    const ReferenceLayout reference =
        LayOutSlowly(random_case.unit, random_case.options, random_case.world_size);
    ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                         FlatLayout::Create(random_case.unit, random_case.options));
    ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, random_case.world_size));
    EXPECT_EQ(Offsets(layout), reference.first_element);
    EXPECT_EQ(layout.end_elements(), reference.end_elements);
    EXPECT_EQ(shards.shard_numel(), reference.shard_numel);
    ASSERT_EQ(shards.padded_numel(), reference.cells.size());
    int64_t num_real = 0;
    for (size_t i = 0; i < reference.cells.size(); ++i) {
      num_real += reference.cells[i].parameter >= 0 ? 1 : 0;
      const ElementRange owned = shards.RangeOf(shards.OwnerOf(i));
      ASSERT_TRUE(owned.begin <= i && i < owned.end) << i;
    }
    EXPECT_EQ(layout.unpadded_numel(), num_real);
    if (HasFailure()) return;
  }
}

// The seeds pad an aligned flat parameter to a multiple of the world size before they cut it into
// chunks, and an unaligned one while they cut it. Both are the same boundaries.
TEST(FlatLayoutPropertyTest, ShardsOfOneElementAlignmentAreTheSeeds) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    RandomCase random_case = MakeRandomCase(&random);
    random_case.options.shard_alignment_bytes = 0;
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", random_case.DebugString()));
    ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                         FlatLayout::Create(random_case.unit, random_case.options));
    ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, random_case.world_size));
    int64_t divisible = layout.end_elements();
    while (divisible % random_case.world_size != 0) ++divisible;
    EXPECT_EQ(shards.padded_numel(), divisible);
  }
}

TEST(ModelLayoutTest, HundredThousandParametersAreLaidOut) {
  constexpr int64_t kNumParameters = 100000;
  ModelSpec model;
  for (int64_t i = 0; i < kNumParameters; ++i) {
    if (i % 50000 == 0) model.units.push_back({absl::StrCat("unit", i), {}});
    model.units.back().parameters.push_back(MakeSpec(absl::StrCat("p", i), {i % 7, 3}));
  }
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, LayoutOptions(), 16));
  ASSERT_EQ(layout.units.size(), 2);
  EXPECT_EQ(layout.units[1].flat.parameters().size(), 50000);
}

TEST(ModelLayoutTest, HybridUnitIsCutOverAGroupAndOthersOverAllRanks) {
  ModelSpec model;
  model.units.push_back({"root", {MakeSpec("a", {64})}});
  model.units.push_back({"block", {MakeSpec("b", {64})}});
  model.units.back().strategy = Strategy::kFullShard;
  const Sharding sharding = {/*world_size=*/8, Strategy::kHybridShard, /*group_size=*/2};
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                       ModelLayout::Create(model, LayoutOptions(), sharding));
  EXPECT_EQ(layout.world_size, 8);
  EXPECT_EQ(layout.units[0].shards.num_shards(), 2);
  EXPECT_EQ(layout.units[1].shards.num_shards(), 8);
  for (const int64_t group : {0, 3}) {
    EXPECT_THAT(
        ModelLayout::Create(model, LayoutOptions(), Sharding{8, Strategy::kHybridShard, group}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unit 'root': HYBRID_SHARD")));
  }
}

TEST(ModelLayoutTest, ErrorsOfAnyUnitAreReturned) {
  ModelSpec model;
  model.units = {kThreeLinear, {"huge", {MakeSpec("w", {kMax})}}};
  EXPECT_THAT(ModelLayout::Create(model, LayoutOptions(), 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"huge\"")));
  EXPECT_THAT(ModelLayout::Create({}, LayoutOptions(), 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no unit")));
  model.units.pop_back();
  EXPECT_THAT(ModelLayout::Create(model, LayoutOptions(), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world size")));
}

}  // namespace
}  // namespace tessera
