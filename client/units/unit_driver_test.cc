#include "client/units/unit_driver.h"

#include <functional>
#include <optional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Units in memory, two of which share a slot for their gradients as in a job.
class Host : public UnitHost {
 public:
  explicit Host(int num_units) : open(num_units), added(num_units), reduced(num_units) {}

  absl::Status Open(int unit, Precision) override {
    if (refused == unit) return absl::AbortedError("the epoch is over");
    if (!open[unit]) log.push_back(absl::StrCat("open ", unit));
    open[unit] = true;
    return absl::OkStatus();
  }
  absl::Status AskFor(int unit, bool) override {
    if (!open[unit]) log.push_back(absl::StrCat("ask ", unit));
    return absl::OkStatus();
  }
  absl::Status Close(int unit) override {
    if (open[unit]) log.push_back(absl::StrCat("close ", unit));
    open[unit] = false;
    return absl::OkStatus();
  }
  absl::Status Reduce(int unit) override {
    if (added[unit] > 0) log.push_back(absl::StrCat("reduce ", unit));
    reduced[unit] += std::exchange(added[unit], 0);
    return absl::OkStatus();
  }
  std::optional<int> HolderOfSlot(int unit) override {
    for (size_t other = 1; other < added.size() && unit > 0; ++other) {
      if (static_cast<int>(other) != unit && added[other] > 0 && (other - unit) % 2 == 0)
        return static_cast<int>(other);
    }
    return std::nullopt;
  }

  std::vector<bool> open;
  std::vector<int> added, reduced;
  std::vector<std::string> log;
  int refused = -1;
};

class UnitDriverTest : public testing::Test {
 protected:
  void Start(int num_units, Strategy strategy = Strategy::kFullShard,
             std::vector<int> num_modules = {}) {
    std::vector<UnitLayout> units(num_units);
    for (UnitLayout& unit : units) unit.strategy = strategy;
    num_modules.resize(num_units, 1);
    host_ = std::make_unique<Host>(num_units);
    driver_ = std::make_unique<UnitDriver>(
        UnitDriver::Options{std::move(num_modules), /*root=*/0}, WindowRules(units, 0),
        PrefetchPlan(BackwardPrefetch::kNone, /*forward=*/false, num_units), host_.get());
  }
  // Runs `inside` in it; what a graph of it names.
  std::shared_ptr<const UnitForward> Forward(
      int unit, const std::function<void()>& inside = [] {}, int module = 0) {
    auto forward = driver_->BeginForward(unit, Precision::kCompute);
    EXPECT_OK(forward.status());
    EXPECT_TRUE(host_->open[unit]);
    inside();
    EXPECT_TRUE(host_->open[unit]) << "to the end of its forward";
    EXPECT_OK(driver_->EndForward(forward->get(), module).status());
    return *forward;
  }
  void Node(
      const UnitForward& forward, const std::function<void()>& inside = [] {}) {
    EXPECT_OK(driver_->BeginNode(forward));
    EXPECT_TRUE(host_->open[forward.unit]);
    inside();
    EXPECT_TRUE(host_->open[forward.unit]) << "to the end of the node";
    EXPECT_OK(driver_->EndNode(forward));
  }
  void Gradient(int unit) {
    EXPECT_OK(driver_->MakeRoom(unit));
    EXPECT_EQ(host_->HolderOfSlot(unit), std::nullopt);
    ++host_->added[unit];
    EXPECT_OK(driver_->OnGradient(unit));
  }
  std::vector<std::string> TakeLog() { return std::exchange(host_->log, {}); }

  std::unique_ptr<Host> host_;
  std::unique_ptr<UnitDriver> driver_;
};

TEST_F(UnitDriverTest, UnitIsReadableForItsForwardAndForAllOfItsNodes) {
  Start(2);
  std::shared_ptr<const UnitForward> inner;
  const auto root = Forward(0, [&] { inner = Forward(1); });
  EXPECT_THAT(TakeLog(), ElementsAre("open 0", "open 1", "close 1"));
  driver_->BeginBackward({{0, {2, 1}}, {1, {2, 2}}});
  Node(*root);
  Node(*inner);
  Gradient(1);
  Node(*inner);
  Gradient(1);
  Node(*root);
  Gradient(0);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_THAT(TakeLog(), ElementsAre("open 1", "close 1", "reduce 1", "close 0", "reduce 0"));
}

TEST_F(UnitDriverTest, BackwardInsideOfAForwardLeavesThatForwardsUnitsOpen) {
  Start(3);
  std::shared_ptr<const UnitForward> one;
  const auto root = Forward(0, [&] {
    one = Forward(1);
    Forward(2, [&] {
      driver_->BeginBackward({{1, {1, 0}}});
      Node(*one);
      ASSERT_OK(driver_->EndBackward(false));
      EXPECT_FALSE(host_->open[1]);
    });
  });
  EXPECT_THAT(TakeLog(),
              ElementsAre("open 0", "open 1", "close 1", "open 2", "open 1", "close 1", "close 2"));
  EXPECT_FALSE(driver_->in_forward());
}

TEST_F(UnitDriverTest, WhatIsComputedAgainStaysForItsNodes) {
  Start(2);
  driver_->BeginBackward({});  // Of a checkpointed segment.
  const auto again = Forward(1);
  EXPECT_TRUE(host_->open[1]);
  driver_->BeginBackward({{1, {1, 0}}});
  Node(*again);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_FALSE(host_->open[1]);
  ASSERT_OK(driver_->EndBackward(false));
}

TEST_F(UnitDriverTest, ComputedAgainForNothingItIsClosedAtTheEnd) {
  Start(2);
  driver_->BeginBackward({});
  Forward(1);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_FALSE(host_->open[1]);
}

TEST_F(UnitDriverTest, GraphThatIsKeptIsGoneThroughAgain) {
  Start(2);
  const auto forward = Forward(1);
  for (int i = 0; i < 3; ++i) {
    driver_->BeginBackward({{1, {1, 1}}});
    Node(*forward);
    Gradient(1);
    ASSERT_OK(driver_->EndBackward(false));
    EXPECT_FALSE(host_->open[1]);
    EXPECT_EQ(host_->reduced[1], i + 1);
  }
}

// A parameter that is not used has no gradient to wait for, and one that never came is not waited
// for.
TEST_F(UnitDriverTest, WhatCameIsReducedAtTheEnd) {
  Start(2);
  const auto forward = Forward(1);
  driver_->BeginBackward({{1, {1, 2}}});
  Node(*forward);
  Gradient(1);
  EXPECT_EQ(host_->reduced[1], 0);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_EQ(host_->reduced[1], 1);
}

TEST_F(UnitDriverTest, UnitInTheSlotOfAnotherHasThatOneReducedFirst) {
  Start(4);
  driver_->BeginBackward({{1, {0, 2}}, {3, {0, 1}}});
  Gradient(1);
  Gradient(3);
  Gradient(1);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_THAT(TakeLog(), ElementsAre("reduce 1", "reduce 3", "reduce 1"));
}

TEST_F(UnitDriverTest, UnitsThatAccumulateAreNotReduced) {
  Start(2);
  driver_->rules().SetSync(1, false);
  driver_->BeginBackward({{1, {0, 1}}});
  Gradient(1);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_EQ(host_->reduced[1], 0);
  driver_->rules().SetSync(1, true);
  driver_->BeginBackward({});
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_EQ(host_->reduced[1], 1) << "with the next backward, whatever that goes through";
}

TEST_F(UnitDriverTest, ExceptionEndsForwardsAndBackwardsAndTheNextOnesAreWhole) {
  Start(2);
  auto failed = driver_->BeginForward(1, Precision::kCompute);
  ASSERT_OK(failed.status());
  driver_->AbandonForward(**failed);
  EXPECT_FALSE(driver_->in_forward());
  const auto forward = Forward(1);
  driver_->BeginBackward({{1, {2, 1}}});
  ASSERT_OK(driver_->BeginNode(*forward));  // It throws.
  ASSERT_OK(driver_->EndBackward(/*failed=*/true));
  EXPECT_FALSE(driver_->in_backward());
  TakeLog();
  driver_->BeginBackward({{1, {1, 1}}});
  Node(*forward);
  Gradient(1);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_THAT(TakeLog(), ElementsAre("close 1", "reduce 1"));
}

TEST_F(UnitDriverTest, WhatAnExceptionLeftOpenIsClosedWhereTheModelsNextForwardBegins) {
  Start(3);
  auto model = driver_->BeginForward(0, Precision::kCompute);
  auto inner = driver_->BeginForward(2, Precision::kCompute);
  ASSERT_OK(model.status());
  ASSERT_OK(inner.status());
  driver_->AbandonForward(**inner);
  driver_->AbandonForward(**model);
  EXPECT_TRUE(host_->open[2]) << "perhaps no other rank has the exception";
  TakeLog();
  Forward(0, [&] { Forward(1); });
  EXPECT_THAT(TakeLog(), ElementsAre("close 0", "close 2", "open 0", "open 1", "close 1"));
  // Of a backward, too; and a model within a model closes nothing of the outer one's.
  const auto forward = Forward(2);
  driver_->BeginBackward({{2, {1, 1}}});
  ASSERT_OK(driver_->BeginNode(*forward));  // It throws.
  ASSERT_OK(driver_->EndBackward(/*failed=*/true));
  TakeLog();
  Forward(0, [&] { Forward(0); });
  EXPECT_THAT(TakeLog(), ElementsAre("close 0", "close 2", "open 0"));
}

TEST_F(UnitDriverTest, ForwardWhoseUnitDoesNotOpenHasNotBegun) {
  Start(2);
  host_->refused = 1;
  EXPECT_THAT(driver_->BeginForward(1, Precision::kCompute).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch")));
  EXPECT_FALSE(driver_->in_forward());
  host_->refused = -1;
  Forward(1);
  EXPECT_FALSE(host_->open[1]);
}

TEST_F(UnitDriverTest, KeptUnitOutlivesBackwardsThatDoNotUseIt) {
  Start(3, Strategy::kShardGradOp);
  const auto one = Forward(1), two = Forward(2);
  driver_->BeginBackward({{2, {1, 0}}});
  Node(*two);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_TRUE(host_->open[1]);
  driver_->BeginBackward({{1, {1, 0}}});
  Node(*one);
  ASSERT_OK(driver_->EndBackward(false));
  EXPECT_THAT(TakeLog(), ElementsAre("open 1", "open 2", "close 2", "close 1"));
}

TEST_F(UnitDriverTest, UnitOfSeveralModulesIsClosedBehindTheLastOfThem) {
  Start(2, Strategy::kFullShard, {1, 2});
  Forward(
      1, [] {}, /*module=*/1);
  EXPECT_TRUE(host_->open[1]);
  Forward(
      1, [] {}, /*module=*/0);
  EXPECT_FALSE(host_->open[1]);
}

// Programs of forwards and backwards in each other, from graphs that are kept: Forward and Node
// look that units are open.
class RandomProgram {
 public:
  RandomProgram(uint32_t seed, int num_units) : random_(seed), num_units_(num_units) {}
  int Below(int end) { return static_cast<int>(random_() % end); }
  int num_units() const { return num_units_; }

  std::vector<std::shared_ptr<const UnitForward>> graph;

 private:
  std::mt19937 random_;
  const int num_units_;
};

class UnitDriverRandomTest : public UnitDriverTest {
 protected:
  void RunForward(RandomProgram* program, int depth) {
    auto forward = Forward(program->Below(program->num_units()), [&] { Run(program, depth - 1); });
    program->graph.push_back(std::move(forward));
  }
  void RunBackward(RandomProgram* program, int depth) {
    std::vector<std::shared_ptr<const UnitForward>> nodes;
    UnitDriver::BackwardWork work;
    for (const auto& forward : program->graph) {
      if (program->Below(2) == 0) continue;
      nodes.push_back(forward);
      ++work[forward->unit].nodes;
      work[forward->unit].gradients = 1;
    }
    const UnitDriver::BackwardWork announced = work;
    driver_->BeginBackward(std::move(work));
    for (size_t n = nodes.size(); n > 0; --n) {
      if (program->Below(16) == 0) {
        ASSERT_OK(driver_->EndBackward(/*failed=*/true));
        return;
      }
      Node(*nodes[n - 1], [&] { Run(program, depth - 1); });
    }
    for (const auto& [unit, of_unit] : announced) Gradient(unit);
    ASSERT_OK(driver_->EndBackward(/*failed=*/false));
  }
  void Run(RandomProgram* program, int depth) {
    if (depth == 0) return;
    for (int i = program->Below(3); i > 0; --i) {
      if (program->Below(3) == 0) {
        RunBackward(program, depth);
      } else {
        RunForward(program, depth);
      }
    }
  }
};

TEST_F(UnitDriverRandomTest, UnitsAreOpenForWhoReadsThemAndClosedAfterwards) {
  for (uint32_t seed = 0; seed < 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Start(5);
    RandomProgram program(seed, 5);
    for (int i = 0; i < 4; ++i) Run(&program, 4);
    driver_->BeginBackward({});
    ASSERT_OK(driver_->EndBackward(false));
    EXPECT_FALSE(driver_->in_forward() || driver_->in_backward());
    for (int unit = 1; unit < 5; ++unit) EXPECT_FALSE(host_->open[unit]) << unit;
    EXPECT_EQ(host_->added, std::vector<int>(5)) << "all of it is reduced";
  }
}

}  // namespace
}  // namespace tessera
