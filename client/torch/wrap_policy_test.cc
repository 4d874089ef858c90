// What a policy chooses, seen in the units of a dry run. No server.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/torch/sharded.h"
#include "tessera/torch/units.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// 30 elements.
struct LinearImpl : torch::nn::Module {
  LinearImpl() {
    weight = register_parameter("weight", torch::ones({5, 5}));
    bias = register_parameter("bias", torch::ones({5}));
  }
  torch::Tensor forward(torch::Tensor x) { return torch::addmm(bias, x, weight); }
  torch::Tensor weight, bias;
};
struct NormImpl : LinearImpl {};  // A class of its own, as large.

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    linear = register_module("linear", std::make_shared<Sharded<LinearImpl>>());
    norm = register_module("norm", std::make_shared<Sharded<NormImpl>>());
  }
  torch::Tensor forward(torch::Tensor x) { return norm->forward(linear->forward(x)); }
  std::shared_ptr<Sharded<LinearImpl>> linear;
  std::shared_ptr<Sharded<NormImpl>> norm;
};

struct ListImpl : torch::nn::ModuleListImpl {
  ListImpl() {
    push_back(std::make_shared<Sharded<LinearImpl>>());
    push_back(std::make_shared<Sharded<LinearImpl>>());
  }
};

struct AttentionImpl : torch::nn::MultiheadAttentionImpl {
  AttentionImpl() : torch::nn::MultiheadAttentionImpl(4, 1) {
    register_module("extra", std::make_shared<Sharded<LinearImpl>>());
  }
};

struct RootImpl : torch::nn::Module {
  RootImpl() {
    head = register_parameter("head", torch::ones({7}));
    for (const char* name : {"a", "b"}) {
      register_module(name, std::make_shared<Sharded<BlockImpl>>());
    }
    register_module("plain", torch::nn::Linear(2, 2));
  }
  torch::Tensor head;
};

struct SpecialsImpl : torch::nn::Module {
  SpecialsImpl() {
    register_parameter("head", torch::ones({7}));
    register_module("list", std::make_shared<Sharded<ListImpl>>());
    register_module("attention", std::make_shared<Sharded<AttentionImpl>>());
  }
};

std::vector<std::string> UnitsOf(torch::nn::Module& root, const WrapPolicy& policy) {
  auto plan = PlanUnits(root, JobConfig(), policy);
  EXPECT_OK(plan);
  std::vector<std::string> names;
  if (!plan.ok()) return names;
  for (const UnitSpec& unit : plan->model.units) names.push_back(unit.name);
  return names;
}

std::vector<std::string> ParametersOf(torch::nn::Module& root, const WrapPolicy& policy,
                                      const std::string& unit_name) {
  auto plan = PlanUnits(root, JobConfig(), policy);
  EXPECT_OK(plan);
  std::vector<std::string> names;
  if (!plan.ok()) return names;
  for (const UnitSpec& unit : plan->model.units) {
    if (unit.name != unit_name) continue;
    for (const TensorSpec& parameter : unit.parameters) names.push_back(parameter.name);
  }
  return names;
}

TEST(WrapPolicyTest, ByClassMakesExactlyTheRootAndThoseClassesUnits) {  // WRAP-5
  Sharded<RootImpl> root;
  EXPECT_THAT(UnitsOf(root, WrapModules<BlockImpl>()), ElementsAre("root", "a", "b"));
  EXPECT_THAT(UnitsOf(root, WrapModules<NormImpl>()), ElementsAre("root", "a.norm", "b.norm"));
}

TEST(WrapPolicyTest, ParametersOfWhatIsNotChosenBelongToTheNearestUnitAbove) {
  Sharded<RootImpl> root;
  EXPECT_THAT(
      ParametersOf(root, WrapModules<BlockImpl>(), "a"),
      UnorderedElementsAre("a.linear.weight", "a.linear.bias", "a.norm.weight", "a.norm.bias"));
  EXPECT_THAT(ParametersOf(root, WrapModules<NormImpl>(), "root"),
              UnorderedElementsAre("head", "a.linear.weight", "a.linear.bias", "b.linear.weight",
                                   "b.linear.bias", "plain.weight", "plain.bias"));
}

TEST(WrapPolicyTest, NormIsAUnitOfItsOwnInsideABlockThatIsOne) {  // WRAP-2
  Sharded<RootImpl> root;
  EXPECT_THAT(UnitsOf(root, AnyPolicy({WrapModules<NormImpl>(), WrapModules<BlockImpl>()})),
              ElementsAre("root", "a", "a.norm", "b", "b.norm"));
}

TEST(WrapPolicyTest, ChildrenAreAskedFirstAndParentsSeeWhatIsLeft) {  // WRAP-3
  Sharded<RootImpl> root;
  std::vector<std::pair<std::string, int64_t>> asked;
  UnitsOf(root, WrapIf([&](const WrapCandidate& candidate) {
            asked.emplace_back(candidate.name, candidate.numel);
            return candidate.numel > 0 && candidate.name != "b.norm";
          }));
  using testing::Pair;  // Neither the root nor the plain module is asked.
  EXPECT_THAT(asked, ElementsAre(Pair("a.linear", 30), Pair("a.norm", 30), Pair("a", 0),
                                 Pair("b.linear", 30), Pair("b.norm", 30), Pair("b", 30)));
}

TEST(WrapPolicyTest, BySizeWrapsTheBlockWhoseChildrenAreTooSmall) {  // WRAP-7
  Sharded<RootImpl> root;
  EXPECT_THAT(UnitsOf(root, WrapBySize({/*min_numel=*/40})), ElementsAre("root", "a", "b"));
  EXPECT_THAT(UnitsOf(root, WrapBySize({/*min_numel=*/30})),
              ElementsAre("root", "a.linear", "a.norm", "b.linear", "b.norm"))
      << "the children took all, so nothing is left for a block";
  EXPECT_THAT(UnitsOf(root, WrapBySize({/*min_numel=*/0})),
              ElementsAre("root", "a.linear", "a.norm", "b.linear", "b.norm"));
  EXPECT_THAT(UnitsOf(root, WrapBySize({/*min_numel=*/61})), ElementsAre("root"));
  EXPECT_THAT(UnitsOf(root, WrapBySize()), ElementsAre("root"));
}

TEST(WrapPolicyTest, BySizeNeverWrapsAListButItsElements) {  // WRAP-8
  Sharded<SpecialsImpl> root;
  EXPECT_THAT(UnitsOf(root, WrapBySize({/*min_numel=*/30})),
              ElementsAre("root", "list.0", "list.1"));
  EXPECT_THAT(UnitsOf(root, WrapBySize({/*min_numel=*/40})), ElementsAre("root"));
}

TEST(WrapPolicyTest, BySizeLeavesAttentionWholeToTheUnitAboveUnlessToldOtherwise) {  // WRAP-9
  Sharded<SpecialsImpl> root;
  EXPECT_THAT(ParametersOf(root, WrapBySize({/*min_numel=*/30}), "root"),
              testing::Contains("attention.extra.weight"));
  SizeRule rule;
  rule.min_numel = 30;
  rule.leaf = IsAnyOf<ListImpl>;
  EXPECT_THAT(UnitsOf(root, WrapBySize(rule)), ElementsAre("root", "attention", "attention.extra"));
}

TEST(WrapPolicyTest, TiedParameterCountsOnce) {
  Sharded<RootImpl> root;
  auto& block = dynamic_cast<BlockImpl&>(*root.named_children()["a"]);
  block.norm->register_parameter("tied", block.linear->weight);
  block.norm->register_parameter("again", block.linear->weight);
  EXPECT_THAT(UnitsOf(root, WrapBySize({/*min_numel=*/61})), ElementsAre("root"));
}

TEST(WrapPolicyTest, TieOverTwoUnitsIsRefusedAndAPolicyThatJoinsThemIsNot) {
  Sharded<RootImpl> root;
  auto& block = dynamic_cast<BlockImpl&>(*root.named_children()["a"]);
  block.norm->register_parameter("tied", block.linear->weight);
  EXPECT_THAT(PlanUnits(root, JobConfig(), WrapModules<NormImpl, LinearImpl>()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::AllOf(HasSubstr("'a.norm.tied' of unit 'a.norm'"),
                                      HasSubstr("'a.linear.weight' of unit 'a.linear'"))));
  EXPECT_THAT(UnitsOf(root, WrapModules<BlockImpl>()), ElementsAre("root", "a", "b"));
}

TEST(WrapPolicyTest, ModuleWithNothingLeftToShardIsNoUnit) {  // MISC-18
  Sharded<RootImpl> root;
  EXPECT_THAT(UnitsOf(root, AlwaysWrap()),
              ElementsAre("root", "a.linear", "a.norm", "b.linear", "b.norm"));
  Sharded<ListImpl> list;
  EXPECT_THAT(UnitsOf(list, AlwaysWrap()), ElementsAre("0", "1")) << "neither is such a root";
  Sharded<torch::nn::TanhImpl> nothing;
  EXPECT_THAT(PlanUnits(nothing, JobConfig(), AlwaysWrap()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no unit")));
}

TEST(WrapPolicyTest, ModulesThatAreNamedTogetherAreOneUnitInTheirOrder) {  // F2COMM-15
  Sharded<RootImpl> root;
  const WrapPolicy never = WrapIf([](const WrapCandidate&) { return false; });
  const WrapPolicy together = WrapTogether({{"b.norm", "a"}}, never);
  EXPECT_THAT(UnitsOf(root, together), ElementsAre("root", "b.norm, a"));
  EXPECT_THAT(ParametersOf(root, together, "b.norm, a"),
              ElementsAre("a.linear.weight", "a.linear.bias", "a.norm.weight", "a.norm.bias",
                          "b.norm.weight", "b.norm.bias"))
      << "as the walk finds them";
  EXPECT_THAT(UnitsOf(root, AnyPolicy({WrapTogether({{"a.norm", "b.norm"}}, never),
                                       WrapModules<BlockImpl>()})),
              ElementsAre("root", "a", "a.norm, b.norm", "b"))
      << "inside of other units";
}

TEST(WrapPolicyTest, GroupIsOneCandidateForStrategyAndPrecision) {
  Sharded<RootImpl> root;
  WrapPolicy policy = WrapTogether({{"a", "b"}}, WrapModules<NormImpl>());
  std::vector<std::string> asked;
  int64_t numel = 0;
  policy.strategy = [&](const WrapCandidate& unit) {
    if (unit.name == "a, b") numel = unit.numel;
    asked.push_back(unit.name);
    return unit.name == "a, b" ? std::make_optional(Strategy::kNoShard) : std::nullopt;
  };
  MixedPrecision precision;
  precision.per_unit = [](const WrapCandidate& unit, const UnitPrecision& of_model) {
    UnitPrecision own = of_model;
    if (unit.name == "a, b") own.param_dtype = DType::kBf16;
    return own;
  };
  ASSERT_OK_AND_ASSIGN(const UnitPlan plan, PlanUnits(root, JobConfig(), policy, precision));
  EXPECT_THAT(asked, ElementsAre("", "a, b", "a.norm", "b.norm"));
  EXPECT_EQ(plan.model.units[1].strategy, Strategy::kNoShard);
  EXPECT_EQ(plan.model.units[1].compute_dtype, DType::kBf16);
  int64_t of_both = 0;
  for (const char* name : {"a", "b"}) {
    for (const torch::Tensor& p : root.named_children()[name]->parameters()) of_both += p.numel();
  }
  EXPECT_EQ(numel, of_both);
}

TEST(WrapPolicyTest, GroupThatCannotBeAUnitIsRefusedByName) {
  Sharded<RootImpl> root;
  const auto refused = [&](std::vector<std::vector<std::string>> groups, const std::string& why) {
    EXPECT_THAT(PlanUnits(root, JobConfig(), WrapTogether(std::move(groups))),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused({{}}, "names none");
  refused({{"a", "c"}}, "unit of several modules 'a, c': 'c' is not a module below the root");
  refused({{"", "a"}}, "'' is not a module below the root");
  refused({{"a", "plain"}}, "'plain' is not a tessera::Sharded<>");
  refused({{"a", "a.norm"}}, "'a.norm' is inside of another one of them");
  refused({{"a", "a"}}, "'a' is in a unit of several modules already");
  refused({{"a"}, {"b", "a"}}, "'b, a': 'a' is in a unit of several modules already");
  MixedPrecision precision;
  precision.param_dtype = DType::kBf16;
  precision.full_precision = IsAnyOf<NormImpl>;
  EXPECT_THAT(
      PlanUnits(root, JobConfig(), WrapTogether({{"a.norm", "b"}}), precision),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'b' is not kept in full precision")));
}

}  // namespace
}  // namespace tessera
