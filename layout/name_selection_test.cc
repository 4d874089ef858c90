#include "layout/name_selection.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(NameSelectionTest, StarIsAnyBytesQuestionMarkIsOneAndAllElseIsItself) {
  const struct {
    const char* pattern;
    const char* name;
    bool matches;
  } kCases[] = {
      {"a.weight", "a.weight", true},
      {"a.weight", "a.weights", false},
      {"a.weight", "aaweight", false},
      {"a.*", "a.b.c", true},
      {"a.*", "a.", true},
      {"a.*", "a", false},
      {"a.*", "ba.c", false},
      {"*", "", true},
      {"", "", true},
      {"", "a", false},
      {"*.bias", "a.b.bias", true},
      {"*.bias", "a.bias.b", false},
      {"*.bias", "a.bias.bias", true},
      {"a.?.w", "a.1.w", true},
      {"a.?.w", "a.12.w", false},
      {"a.?.w", "a..w", false},
      {"*a*b*", "xxaxxbxx", true},
      {"*a*b*", "xxbxxaxx", false},
      {"**", "a", true},
      {"[ab]", "a", false},
      {"[ab]", "[ab]", true},
      {"\\*", "*", false},
      {"A", "a", false},
  };
  for (const auto& [pattern, name, matches] : kCases)
    EXPECT_EQ(MatchesPattern(pattern, name), matches) << pattern << " of " << name;
}

TEST(NameSelectionTest, PatternOfManyStarsEndsSoon) {
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesPattern(pattern + "b", std::string(5000, 'a')));
}

TEST(NameSelectionTest, WhatIsIncludedIsWantedUnlessItIsExcluded) {
  NameSelection selection;
  EXPECT_TRUE(IsWanted(selection, {"a.w"}));
  selection.exclude = {"*.b"};
  EXPECT_TRUE(IsWanted(selection, {"a.w"}));
  EXPECT_FALSE(IsWanted(selection, {"a.b"}));
  selection.include = {"a.*", "c"};
  EXPECT_TRUE(IsWanted(selection, {"c"}));
  EXPECT_FALSE(IsWanted(selection, {"a.b"}));
  EXPECT_FALSE(IsWanted(selection, {"d"}));
  EXPECT_TRUE(IsWanted(selection, {"d", "c"})) << "either of its names";
  EXPECT_FALSE(IsWanted(selection, {"a.w", "a.b"})) << "either of its names";
}

TEST(NameSelectionTest, PrefixIsReplacedOnlyWhereANameBeginsWithIt) {
  const std::vector<NameSelection::Rename> wrap = {{"layer.", "module.layer."}};
  const std::vector<NameSelection::Rename> unwrap = {{"module.layer.", "layer."}};
  EXPECT_EQ(NameInModel(wrap, "layer.a"), "module.layer.a");
  EXPECT_EQ(NameInModel(wrap, "abc.layer.def"), "abc.layer.def");
  EXPECT_EQ(NameInModel(wrap, "layer"), "layer");
  EXPECT_EQ(NameInModel(wrap, "layers.a"), "layers.a");
  for (const char* name : {"layer.a", "abc.layer.def", "layer", "layer.layer.b"})
    EXPECT_EQ(NameInModel(unwrap, NameInModel(wrap, name)), name);
  EXPECT_EQ(NameInModel({{"", "model."}}, "a"), "model.a");
  EXPECT_EQ(NameInModel({{"model/", ""}}, "model/a"), "a");
}

TEST(NameSelectionTest, OtherNamesAreReplacedWhole) {
  EXPECT_EQ(NameInModel({{"h.1", "block"}}, "h.1"), "block");
  EXPECT_EQ(NameInModel({{"h.1", "block"}}, "h.10"), "h.10");
  EXPECT_EQ(NameInModel({{"h.1", "block"}}, "h.1.w"), "h.1.w");
}

TEST(NameSelectionTest, FirstRenameThatAppliesIsTheOnlyOne) {
  const std::vector<NameSelection::Rename> renames = {{"a.b.", "x."}, {"a.", "y."}, {"x.", "z."}};
  EXPECT_EQ(NameInModel(renames, "a.b.w"), "x.w");
  EXPECT_EQ(NameInModel(renames, "a.w"), "y.w");
  EXPECT_EQ(NameInModel(renames, "x.w"), "z.w");
}

TEST(NameSelectionTest, TwoTensorsOfOneNameAreAnErrorThatNamesBoth) {
  ASSERT_OK_AND_ASSIGN(const auto names, NamesInModel({"model.a", "b"}, {{"model.", ""}}));
  EXPECT_THAT(names, ElementsAre(Pair("a", "model.a"), Pair("b", "b")));
  EXPECT_THAT(
      NamesInModel({"a", "model.a"}, {{"model.", ""}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("tensors 'a' and 'model.a'"), HasSubstr("both 'a' in the model"))));
}

}  // namespace
}  // namespace tessera
