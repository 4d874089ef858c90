#include "layout/layout_dump.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ModelLayout MakeModel(std::vector<TensorSpec> parameters, int64_t world_size) {
  ModelSpec model;
  model.units.push_back({"mlp", std::move(parameters)});
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  return ModelLayout::Create(model, options, world_size).value();
}

TEST(LayoutDumpTest, DrawsWholeAndCutParametersGapsAndPadding) {
  const ModelLayout layout = MakeModel(
      {MakeSpec("0.weight", {7, 3}), MakeSpec("1.weight", {5, 7}), MakeSpec("2.weight", {5, 5})},
      2);
  EXPECT_EQ(DumpLayout(layout, DumpOptions()),
            "unit \"mlp\": fp32, 81 elements in 3 parameters; 2 ranks of 43 hold 86\n"
            "  rank 0 [ 0, 43)  | 0.weight 21 | gap 3 | 1.weight [0, 19) |\n"
            "  rank 1 [43, 86)  | 1.weight [19, 35) | gap 1 | 2.weight 25 | pad 1 |\n");
}

TEST(LayoutDumpTest, RankOfOnlyPaddingIsDrawnAsPadding) {
  const ModelLayout layout = MakeModel({MakeSpec("w", {5})}, 4);
  EXPECT_EQ(DumpRank(layout.units[0], Rank(2), DumpOptions()),
            "rank 2 [4, 6)  | w [4, 5) | pad 1 |");
  EXPECT_EQ(DumpRank(layout.units[0], Rank(3), DumpOptions()), "rank 3 [6, 8)  | pad 2 |");
}

TEST(LayoutDumpTest, GapMayRunOverTheEndOfARank) {
  const ModelLayout layout = MakeModel({MakeSpec("a", {1}), MakeSpec("b", {1})}, 2);
  EXPECT_EQ(DumpRank(layout.units[0], Rank(0), DumpOptions()), "rank 0 [0, 3)  | a 1 | gap 2 |");
  EXPECT_EQ(DumpRank(layout.units[0], Rank(1), DumpOptions()),
            "rank 1 [3, 6)  | gap 1 | b 1 | pad 1 |");
}

TEST(LayoutDumpTest, SharedAndEmptyParametersAreListed) {
  std::vector<TensorSpec> parameters = {MakeSpec("embed", {2}), MakeSpec("head", {2}),
                                        MakeSpec("none", {0})};
  parameters[1].shared_with = "embed";
  EXPECT_EQ(DumpLayout(MakeModel(std::move(parameters), 1), DumpOptions()),
            "unit \"mlp\": fp32, 2 elements in 2 parameters; 1 rank of 4 holds 4\n"
            "  rank 0 [0, 4)  | embed 2 | gap 2 |\n"
            "  empty  none\n"
            "  shared head = embed\n");
}

TEST(LayoutDumpTest, LongRanksAndManyRanksAreCounted) {
  std::vector<TensorSpec> parameters;
  for (int i = 0; i < 10; ++i) parameters.push_back(MakeSpec(absl::StrCat("p", i), {4}));
  const ModelLayout layout = MakeModel(std::move(parameters), 2);
  DumpOptions options;
  options.max_pieces = 3;
  options.max_ranks = 1;
  const std::string text = DumpLayout(layout, options);
  EXPECT_THAT(text, HasSubstr("| p0 4 | p1 4 | p2 4 | ... 2 more\n"));
  EXPECT_THAT(text, HasSubstr("... 1 more ranks"));
  EXPECT_THAT(text, Not(HasSubstr("rank 1")));
}

TEST(LayoutDumpTest, UnitWithoutElementsHasEmptyRanks) {
  EXPECT_THAT(DumpLayout(MakeModel({MakeSpec("none", {0})}, 2), DumpOptions()),
              HasSubstr("rank 1 [0, 0)  |\n"));
}

TEST(LayoutDumpTest, NamesAreEscaped) {
  EXPECT_THAT(DumpLayout(MakeModel({MakeSpec("a\x1b[31m", {1})}, 1), DumpOptions()),
              HasSubstr("a\\x1b[31m 1"));
}

TEST(LayoutDumpTest, UnitTableSaysWhatIsPaddingAndWhatARankHolds) {
  ModelSpec model;
  model.units.push_back({"root", {MakeSpec("head", {5})}});
  model.units.push_back({"layers.0", {MakeSpec("w", {7, 3}), MakeSpec("b", {2})}});
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout, ModelLayout::Create(model, options, 2));
  EXPECT_EQ(DumpUnits(layout, DType::kBf16),
            "units (ranks: 2, compute bf16)\n"
            "  unit     parameters       elements    padding         size    of a rank\n"
            "  root              1              5          1         12 B          6 B\n"
            "  layers.0          2             23          3         52 B         26 B\n");
}

TEST(LayoutDumpTest, MemoryTableHasARowForEachStrategy) {
  const ModelLayout layout = MakeModel({MakeSpec("w", {1024})}, 4);
  ASSERT_OK_AND_ASSIGN(const std::string text, DumpMemory(layout, MemoryOptions()));
  EXPECT_EQ(text,
            "memory per rank (one host, shards fp32, compute fp32, 2 optimizer states)\n"
            "  strategy        parameters    gradients    optimizer unsharded peak   rank total   "
            "host total\n"
            "  FULL_SHARD         1.0 KiB      1.0 KiB      2.0 KiB        4.0 KiB      8.0 KiB   "
            "  32.0 KiB\n"
            "  SHARD_GRAD_OP      1.0 KiB      1.0 KiB      2.0 KiB        4.0 KiB      8.0 KiB   "
            "  32.0 KiB\n"
            "  NO_SHARD           4.0 KiB      4.0 KiB      8.0 KiB            0 B     16.0 KiB   "
            "  64.0 KiB\n");
  MemoryOptions wrong;
  wrong.ranks_per_host = 9;
  EXPECT_THAT(DumpMemory(layout, wrong),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ranks_per_host")));
}

TEST(LayoutDumpTest, BytesAreWrittenInTheLargestFittingUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

}  // namespace
}  // namespace tessera
