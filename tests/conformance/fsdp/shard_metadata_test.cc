// Conformance: FLAT-4, FLAT-7, FLAT-8, FLAT-9. Compares the layout with PyTorch's own: every number
// that its FlatParamHandle gave for random units, in worlds of 1 to 8 and on every rank, is
// Tessera's. tests/reference/torch/golden/README.md says what the record holds.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_matchers.h"
#include "layout/dtype.h"
#include "layout/flat_layout.h"
#include "layout/shard_map.h"
#include "layout/shard_view.h"
#include "layout/tensor_spec.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

const Json& Golden() {
  static const Json* const golden = [] {
    std::ifstream file("tests/reference/torch/golden/shard_metadata.json");
    return new Json(Json::parse(file));
  }();
  return *golden;
}

DType DTypeOf(const Json& unit, const char* key) {
  return ParseDType(unit.at(key).get<std::string>()).value();
}

UnitSpec UnitSpecOf(const Json& unit) {
  UnitSpec spec;
  spec.name = unit.at("name");
  for (const Json& row : unit.at("parameters")) {
    TensorSpec parameter;
    parameter.name = row.at(0);
    parameter.shape = row.at(1).get<std::vector<int64_t>>();
    parameter.dtype = DTypeOf(unit, "dtype");
    if (row.size() > 2) parameter.shared_with = row.at(2);
    spec.parameters.push_back(parameter);
  }
  return spec;
}

// What PyTorch does: 16 bytes of the compute dtype or nothing between parameters, and shards that
// are cut at single elements.
LayoutOptions OptionsOf(const Json& unit, bool aligned) {
  LayoutOptions options;
  options.parameter_alignment_bytes = aligned ? 16 : 0;
  options.shard_alignment_bytes = 0;
  options.alignment_dtype =
      DTypeOf(unit, unit.contains("compute_dtype") ? "compute_dtype" : "dtype");
  return options;
}

// Rows as the record has them, of the parameters that are in the shard.
Json RowsOf(const std::vector<ParameterShard>& parameters) {
  Json rows = Json::array();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterShard& shard = parameters[i];
    if (!shard.in_shard) continue;
    rows.push_back({i, shard.offset_in_shard, shard.numel_in_shard, shard.intra_param_start,
                    shard.intra_param_end});
  }
  return rows;
}

// What FlatParamHandle.shard_metadata() returns.
Json MetadataOf(const FlatLayout& layout, const ShardView& view) {
  Json names = Json::array(), shapes = Json::array(), numels = Json::array(),
       offsets = Json::array();
  for (size_t i = 0; i < view.parameters().size(); ++i) {
    const ParameterShard& shard = view.parameters()[i];
    if (!shard.in_shard) continue;
    names.push_back(layout.parameters()[i].spec.name);
    shapes.push_back(layout.parameters()[i].spec.shape);
    numels.push_back(layout.parameters()[i].numel);
    offsets.push_back({shard.intra_param_start, shard.intra_param_end});
  }
  return Json::array({names, shapes, numels, offsets});
}

void ExpectSamePlacement(const FlatLayout& layout, const Json& golden) {
  Json names = Json::array(), numels = Json::array(), starts = Json::array(),
       shared = Json::array();
  for (const PlacedParameter& parameter : layout.parameters()) {
    names.push_back(parameter.spec.name);
    numels.push_back(parameter.numel);
    starts.push_back(parameter.offset_elements);
  }
  for (const Alias& alias : layout.aliases()) shared.push_back({alias.name, alias.primary});
  EXPECT_EQ(names, golden.at("fqns"));
  EXPECT_EQ(numels, golden.at("numels"));
  EXPECT_EQ(starts, golden.at("starts"));
  EXPECT_EQ(shared, golden.at("shared"));
  int64_t sum = 0;
  for (const Json& numel : golden.at("numels")) sum += numel.get<int64_t>();
  EXPECT_EQ(layout.unpadded_numel(), sum);
}

// PyTorch pads an aligned flat parameter to a multiple of the world size when it makes it, and
// counts that as unpadded; an unaligned one is padded when it is cut.
int64_t MadeNumel(const FlatLayout& layout, const ShardMap& shards, bool aligned) {
  return aligned ? shards.padded_numel() : layout.end_elements();
}

void ExpectSameShards(const FlatLayout& layout, bool aligned, int64_t world_size,
                      const Json& golden) {
  ASSERT_OK_AND_ASSIGN(const ShardMap shards, ShardMap::Create(layout, world_size));
  const int64_t made_numel = MadeNumel(layout, shards, aligned);
  EXPECT_EQ(made_numel, golden.at("unpadded"));
  EXPECT_EQ(shards.padded_numel(), golden.at("padded"));
  EXPECT_EQ(shards.shard_numel(), golden.at("shard"));
  ASSERT_EQ(golden.at("ranks").size(), world_size);
  for (int64_t rank = 0; rank < world_size; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    ASSERT_OK_AND_ASSIGN(const ShardView view, ShardView::Create(layout, shards, Rank(rank)));
    Json expected = golden.at("ranks").at(rank);
    const int64_t tail = std::min(view.range().size(), view.range().end - made_numel);
    EXPECT_EQ(std::max(tail, int64_t{0}), expected.at(0));
    expected.erase(0);
    EXPECT_EQ(RowsOf(view.parameters()), expected);
    if (!golden.contains("metadata")) continue;
    EXPECT_EQ(MetadataOf(layout, view), golden.at("metadata").at(rank));  // FLAT-7
  }
}

class ShardMetadataTest : public testing::TestWithParam<bool> {};

TEST_P(ShardMetadataTest, EveryShardOfEveryUnitIsPyTorchs) {
  const bool aligned = GetParam();
  ASSERT_EQ(Golden().at("units").size(), 225);
  for (const Json& unit : Golden().at("units")) {
    SCOPED_TRACE(absl::StrCat(unit.at("name").get<std::string>(), ", ",
                              unit.at("dtype").get<std::string>(), ": ",
                              unit.at("parameters").dump()));
    const Json& golden = unit.at(aligned ? "aligned" : "unaligned");
    ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                         FlatLayout::Create(UnitSpecOf(unit), OptionsOf(unit, aligned)));
    ExpectSamePlacement(layout, golden);  // FLAT-4
    ASSERT_EQ(golden.at("worlds").size(), 8);
    for (int64_t world_size = 1; world_size <= 8; ++world_size) {
      SCOPED_TRACE(absl::StrCat("world of ", world_size));
      ExpectSameShards(layout, aligned, world_size, golden.at("worlds").at(world_size - 1));
    }
    if (HasFailure()) return;  // One unit says enough.
  }
}

INSTANTIATE_TEST_SUITE_P(UseOrigParams, ShardMetadataTest, testing::Bool(), [](const auto& info) {
  return info.param ? "TrueIsAligned" : "FalseIsUnaligned";
});

TEST(ShardMetadataOfRangesTest, EveryRangeAroundABoundaryIsPyTorchs) {  // FLAT-7, FLAT-8, FLAT-9
  ASSERT_EQ(Golden().at("ranges").size(), 3);
  for (const Json& unit : Golden().at("ranges")) {
    SCOPED_TRACE(unit.at("name").get<std::string>());
    ASSERT_OK_AND_ASSIGN(const FlatLayout layout,
                         FlatLayout::Create(UnitSpecOf(unit), OptionsOf(unit, unit.at("aligned"))));
    ASSERT_GT(unit.at("ranges").size(), 100);
    for (Json row : unit.at("ranges")) {
      const ElementRange range = {row.at(0), row.at(1).get<int64_t>() + 1};
      row.erase(0);
      row.erase(0);
      EXPECT_EQ(RowsOf(ComputeParameterShards(layout, range)), row)
          << "[" << range.begin << ", " << range.end - 1 << "]";
    }
  }
}

}  // namespace
}  // namespace tessera
