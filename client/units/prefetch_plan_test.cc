#include "client/units/prefetch_plan.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Unit 0 is the root, 1 to n - 1 are its children in order.
struct Chain {
  Chain(BackwardPrefetch backward, bool forward, int units)
      : plan(backward, forward, units), num_units(units), uses(units) {}
  // What each unit's forward asks for ahead: "1:2 2:3".
  std::string Forward() {
    std::string log;
    plan.BeginForward();
    Ask(&log, 0, plan.PreForward(0));
    for (int unit = 1; unit < num_units; ++unit) {
      Ask(&log, unit, plan.PreForward(unit));
      End(unit);
    }
    End(0);
    plan.EndForward();
    return log;
  }
  std::string Backward() {
    std::string log;
    for (int i = num_units; i > 0; --i) {
      const int unit = i % num_units;  // The root's outputs come first, its gradients last.
      Ask(&log, unit, plan.PreBackward(unit, uses[unit]));
      if (unit != 0) Ask(&log, unit, plan.PostBackward(unit));
    }
    Ask(&log, 0, plan.PostBackward(0));
    plan.EndBackward();
    return log;
  }
  void End(int unit) {
    uses[unit] = plan.NextUse();
    plan.PostForward(unit);
  }
  static void Ask(std::string* log, int unit, const std::vector<int>& ahead) {
    for (const int other : ahead) absl::StrAppend(log, log->empty() ? "" : " ", unit, ":", other);
  }
  PrefetchPlan plan;
  int num_units;
  std::vector<PrefetchPlan::Use> uses;
};

TEST(PrefetchPlanTest, NoneAsksForNothing) {  // BWP-2
  Chain chain(BackwardPrefetch::kNone, false, 4);
  EXPECT_EQ(chain.Forward(), "");
  EXPECT_EQ(chain.Backward(), "");
}

TEST(PrefetchPlanTest, PreAsksForEveryUnitButTheRootOneEarly) {  // BWP-3, BWP-5
  Chain chain(BackwardPrefetch::kPre, false, 13);
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(chain.Forward(), "");
    EXPECT_EQ(chain.Backward(), "0:12 12:11 11:10 10:9 9:8 8:7 7:6 6:5 5:4 4:3 3:2 2:1");
  }
}

TEST(PrefetchPlanTest, PostCannotAskForTheFirstUnitOfBackward) {  // BWP-4, BWP-5
  Chain chain(BackwardPrefetch::kPost, false, 13);
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(chain.Forward(), "");
    EXPECT_EQ(chain.Backward(), "12:11 11:10 10:9 9:8 8:7 7:6 6:5 5:4 4:3 3:2 2:1");
  }
}

TEST(PrefetchPlanTest, ForwardFollowsTheFirstWholeForward) {
  Chain chain(BackwardPrefetch::kNone, true, 4);
  chain.plan.BeginForward();
  EXPECT_THAT(chain.plan.PreForward(0), IsEmpty());
  EXPECT_THAT(chain.plan.PreForward(3), IsEmpty()) << "an exception ends this one";
  EXPECT_EQ(chain.Forward(), "") << "nothing is recorded yet";
  EXPECT_EQ(chain.Forward(), "0:1 1:2 2:3");
  EXPECT_EQ(chain.Forward(), "0:1 1:2 2:3");
  chain.plan.BeginForward();
  EXPECT_THAT(chain.plan.PreForward(0), ElementsAre(1));
  EXPECT_THAT(chain.plan.PreForward(2), ElementsAre(3)) << "not as recorded";
  EXPECT_THAT(chain.plan.PreForward(1), IsEmpty()) << "unit 2 has been there";
}

TEST(PrefetchPlanTest, ListsTakeThePlaceOfTheRecord) {
  Chain chain(BackwardPrefetch::kPre, true, 4);
  chain.plan.SetForward(0, {1, 2});
  chain.plan.SetBackward(3, {2, 1});
  EXPECT_EQ(chain.Forward(), "0:1 0:2") << "needs no record";
  EXPECT_EQ(chain.Backward(), "0:3 3:2 3:1 2:1");
  EXPECT_EQ(chain.Forward(), "0:1 0:2 1:2 2:3");
  chain.plan.SetForward(0, {});
  chain.plan.SetBackward(3, {});
  EXPECT_EQ(chain.Backward(), "0:3 3:2 2:1");
  EXPECT_EQ(chain.Forward(), "0:1 1:2 2:3");
}

TEST(PrefetchPlanTest, ParentThatEndsLastIsAskedForBeforeItsChildren) {
  // 0 contains 1, which contains 2 and 3.
  PrefetchPlan plan(BackwardPrefetch::kPre, false, 4);
  plan.BeginForward();
  for (int unit = 0; unit < 4; ++unit) (void)plan.PreForward(unit);
  std::vector<PrefetchPlan::Use> uses(4);
  for (const int unit : {2, 3, 1, 0}) {
    uses[unit] = plan.NextUse();
    plan.PostForward(unit);
  }
  EXPECT_THAT(plan.PreBackward(0, uses[0]), ElementsAre(1));
  EXPECT_THAT(plan.PreBackward(1, uses[1]), ElementsAre(3));
  EXPECT_THAT(plan.PreBackward(1, uses[1]), IsEmpty()) << "its second output";
  EXPECT_THAT(plan.PreBackward(3, uses[3]), ElementsAre(2));
  EXPECT_THAT(plan.PreBackward(2, uses[2]), IsEmpty());
}

TEST(PrefetchPlanTest, GraphKeepsTheOrderOfItsOwnForward) {  // F2COMM-11
  Chain first(BackwardPrefetch::kPre, false, 3);
  (void)first.Forward();
  const std::vector<PrefetchPlan::Use> of_first = first.uses;
  first.plan.BeginForward();  // The second one, in another order.
  std::vector<PrefetchPlan::Use> of_second(3);
  for (const int unit : {2, 1, 0}) {
    (void)first.plan.PreForward(unit);
    of_second[unit] = first.plan.NextUse();
    first.plan.PostForward(unit);
  }
  EXPECT_EQ(first.plan.LastUse(1).position, 1);
  EXPECT_THAT(first.plan.PreBackward(0, of_second[0]), ElementsAre(1));
  EXPECT_THAT(first.plan.PreBackward(1, of_second[1]), ElementsAre(2));
  EXPECT_THAT(first.plan.PreBackward(2, of_second[2]), IsEmpty());
  first.plan.EndBackward();
  EXPECT_THAT(first.plan.PreBackward(0, of_first[0]), ElementsAre(2));
  EXPECT_THAT(first.plan.PreBackward(2, of_first[2]), ElementsAre(1));
}

}  // namespace
}  // namespace tessera
