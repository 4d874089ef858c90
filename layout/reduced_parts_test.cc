#include "layout/reduced_parts.h"

#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Weights of 6 and biases of 3 elements, with gaps; on two ranks.
ModelLayout TwoLayers(bool weights_train, bool biases_train) {
  ModelSpec model;
  model.units.push_back({"mlp",
                         {MakeSpec("0.weight", {2, 3}), MakeSpec("0.bias", {3}),
                          MakeSpec("1.weight", {2, 3}), MakeSpec("1.bias", {3})}});
  for (int i = 0; i < 4; ++i)
    model.units[0].parameters[i].requires_grad = i % 2 == 0 ? weights_train : biases_train;
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  return ModelLayout::Create(model, options, 2).value();
}

TEST(ReducedPartsTest, UnitWithoutFrozenParametersIsReducedWhole) {
  const UnitLayout unit = TwoLayers(true, true).units[0];
  EXPECT_THAT(ReducedParts(unit), ElementsAre(ElementRange{0, unit.shards.padded_numel()}));
}

TEST(ReducedPartsTest, OfAMixedUnitTheTrainableParametersAndNoGapAreReduced) {
  const UnitLayout unit = TwoLayers(false, true).units[0];
  // 0.weight [0, 6), 0.bias [8, 11), 1.weight [12, 18), 1.bias [20, 23).
  EXPECT_THAT(ReducedParts(unit), ElementsAre(ElementRange{8, 11}, ElementRange{20, 23}));
  EXPECT_THAT(ReducedParts(TwoLayers(true, false).units[0]),
              ElementsAre(ElementRange{0, 6}, ElementRange{12, 18}));
}

TEST(ReducedPartsTest, OfAFrozenUnitNothingIs) {
  EXPECT_THAT(ReducedParts(TwoLayers(false, false).units[0]), IsEmpty());
}

TEST(ReducedPartsTest, EachPartCountsInTheSlicesThatItLiesIn) {
  const std::vector<ElementRange> parts = {{8, 11}, {20, 23}};
  EXPECT_EQ(CountIn(parts, {0, 24}), 6);
  EXPECT_EQ(CountIn(parts, {0, 10}), 2);
  EXPECT_EQ(CountIn(parts, {10, 21}), 2);
  EXPECT_EQ(CountIn(parts, {11, 20}), 0);
  EXPECT_EQ(CountIn({}, {0, 24}), 0);
}

}  // namespace
}  // namespace tessera
