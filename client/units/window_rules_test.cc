#include "client/units/window_rules.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int kRoot = 0, kInner = 1;

WindowRules RulesOf(Strategy strategy, int root = 0) {
  std::vector<UnitLayout> units(2);
  for (UnitLayout& unit : units) unit.strategy = strategy;
  return WindowRules(units, root);
}

TEST(WindowRulesTest, StrategySaysItUntilTheTrainerDoes) {
  for (const bool told : {false, true}) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard, Strategy::kHybridShard,
          Strategy::kHybridShardZero2}) {
      SCOPED_TRACE(testing::Message() << Name(strategy) << (told ? ", told the opposite" : ""));
      WindowRules rules = RulesOf(strategy);
      const bool whole = strategy == Strategy::kNoShard;
      bool reshards = strategy == Strategy::kFullShard || strategy == Strategy::kHybridShard;
      EXPECT_FALSE(rules.ReshardsAfterForward(kRoot));
      if (told) {
        reshards = !reshards && !whole;
        rules.SetReshardAfterForward(kRoot, !ReshardsAfterForward(strategy));
        rules.SetReshardAfterForward(kInner, !ReshardsAfterForward(strategy));
        EXPECT_EQ(rules.ReshardsAfterForward(kRoot), reshards);
      }
      EXPECT_EQ(rules.ReshardsAfterForward(kInner), reshards);
      EXPECT_EQ(rules.ReshardsAfterBackward(kInner), !whole);
      rules.SetSync(kInner, false);
      EXPECT_EQ(rules.ReshardsAfterBackward(kInner), reshards) << "it accumulates";
      EXPECT_EQ(rules.ReshardsAfterBackward(kRoot), !whole);
    }
  }
}

TEST(WindowRulesTest, SyncThatIsExchangedComesBackAndOthersAreNotReduced) {
  WindowRules rules = RulesOf(Strategy::kFullShard);
  rules.SetSync(kInner, false);
  const std::vector<bool> before = rules.ExchangeSync({});
  EXPECT_FALSE(rules.Syncs(kRoot));
  EXPECT_FALSE(rules.Syncs(kInner));
  rules.ExchangeSync(before);
  EXPECT_TRUE(rules.Syncs(kRoot));
  EXPECT_FALSE(rules.Syncs(kInner));
}

// MISC-18: the first unit is one as the others.
TEST(WindowRulesTest, WhereTheRootIsNoUnitNoneStaysForIt) {
  WindowRules rules = RulesOf(Strategy::kFullShard, /*root=*/-1);
  EXPECT_TRUE(rules.ReshardsAfterForward(0));
  rules.SetReshardAfterForward(0, false);
  EXPECT_FALSE(rules.ReshardsAfterForward(0));
}

}  // namespace
}  // namespace tessera
