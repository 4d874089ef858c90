// The engine's pure parts. Whole engines run in tests/integration and tests/fault.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/norm_part.h"
#include "worker/engine/flight_recorder.h"
#include "worker/engine/gradient_norm.h"
#include "worker/engine/group_page.h"
#include "worker/engine/order_tracker.h"
#include "worker/engine/step_vote.h"
#include "worker/engine/unit_state.h"

namespace tessera {
namespace {

using testing::HasSubstr;

OrderEntry Entry(int64_t unit, OpKind kind = OpKind::kUnshard) {
  return {kind, unit, DType::kFp32, 10};
}

TEST(OrderTrackerTest, FirstStepAsksForEveryEntryAndLaterOnesForNone) {
  OrderTracker tracker;
  for (int step = 0; step < 3; ++step) {
    for (int unit = 0; unit < 4; ++unit) {
      EXPECT_EQ(tracker.sequence(), unit);
      EXPECT_EQ(tracker.Check(Entry(unit)),
                step == 0 ? OrderVerdict::kAsk : OrderVerdict::kProceed);
      tracker.Issued(Entry(unit));
    }
    tracker.StepCommitted();
  }
}

TEST(OrderTrackerTest, DeviationAsksForTheRestOfItsStepAndBecomesTheRecord) {
  OrderTracker tracker;
  for (int unit : {0, 1, 2}) tracker.Issued(Entry(unit));
  tracker.StepCommitted();
  tracker.Issued(Entry(0));
  EXPECT_EQ(tracker.Check(Entry(2)), OrderVerdict::kAsk);
  tracker.Issued(Entry(2));
  EXPECT_EQ(tracker.Check(Entry(2)), OrderVerdict::kAsk) << "though the record has it here";
  tracker.Issued(Entry(2));
  tracker.StepCommitted();
  for (int unit : {0, 2, 2}) {
    EXPECT_EQ(tracker.Check(Entry(unit)), OrderVerdict::kProceed);
    tracker.Issued(Entry(unit));
  }
  EXPECT_EQ(tracker.Check(Entry(2)), OrderVerdict::kAsk) << "past the end of the record";
}

TEST(OrderTrackerTest, UpcomingUnshardsFollowTheRecordFromThePositionOn) {
  OrderTracker tracker;
  std::vector<int> units = {77};
  tracker.UpcomingUnshards({2}, &units);
  EXPECT_THAT(units, testing::IsEmpty()) << "nothing is recorded yet";
  for (int unit : {0, 1, 2}) tracker.Issued(Entry(unit));
  tracker.Issued(Entry(2, OpKind::kReduce));
  tracker.Issued(Entry(1));
  tracker.StepCommitted();
  tracker.UpcomingUnshards({2}, &units);
  EXPECT_THAT(units, testing::ElementsAre(0, 1));
  tracker.Issued(Entry(0));
  tracker.Issued(Entry(1));
  tracker.UpcomingUnshards({3}, &units);
  EXPECT_THAT(units, testing::ElementsAre(2, 1)) << "over the reduction, up to the record's end";
  tracker.Issued(Entry(1));
  tracker.UpcomingUnshards({3}, &units);
  EXPECT_THAT(units, testing::IsEmpty()) << "the step deviates from its record";
}

TEST(OrderTrackerTest, UpcomingUnshardsStopBeforeTheFirstThatExceedsTheBytes) {
  OrderTracker tracker;
  std::vector<int> units;
  for (int unit : {0, 1, 0, 2, 1}) tracker.Issued(Entry(unit));
  tracker.StepCommitted();
  GatherLimit limit = {9, 0, {100, 30, 50}};
  const auto upcoming = [&](int64_t max_bytes) {
    limit.max_bytes = max_bytes;
    tracker.UpcomingUnshards(limit, &units);
    return units;
  };
  EXPECT_THAT(upcoming(0), testing::ElementsAre(0, 1, 0, 2, 1)) << "no limit in bytes";
  EXPECT_THAT(upcoming(180), testing::ElementsAre(0, 1, 0, 2, 1)) << "each unit counts once";
  EXPECT_THAT(upcoming(179), testing::ElementsAre(0, 1, 0)) << "and what is behind is not reached";
  EXPECT_THAT(upcoming(130), testing::ElementsAre(0, 1, 0));
  EXPECT_THAT(upcoming(129), testing::ElementsAre(0));
  EXPECT_THAT(upcoming(99), testing::IsEmpty());
  limit.max_units = 1;
  EXPECT_THAT(upcoming(180), testing::ElementsAre(0)) << "both limits hold";
}

// Issues `order` and then, if `ends`, says that a forward ended; how often it had to ask.
int AsksOf(OrderTracker* tracker, const std::vector<OrderEntry>& order, bool ends) {
  int asks = 0;
  const auto issue = [&](const OrderEntry& entry) {
    asks += tracker->Check(entry) == OrderVerdict::kAsk;
    tracker->Issued(entry);
  };
  for (const OrderEntry& entry : order) issue(entry);
  if (ends && tracker->ForwardEnded()) {
    issue({OpKind::kEndForward});
    tracker->PassEnded();
  }
  return asks;
}

TEST(OrderTrackerTest, ForwardsThatRepeatAskNobodyHoweverManyThereAre) {
  OrderTracker tracker;
  const std::vector<OrderEntry> forward = {{OpKind::kUnshard, 0}, {OpKind::kUnshard, 1}};
  const std::vector<OrderEntry> step = {
      {OpKind::kUnshard, 0}, {OpKind::kUnshard, 1}, {OpKind::kReduce, 1}, {OpKind::kStep}};
  AsksOf(&tracker, step, false);
  tracker.StepCommitted();
  EXPECT_EQ(AsksOf(&tracker, forward, true), 0) << "it begins as a step does";
  EXPECT_EQ(tracker.pass(), 0) << "nothing is cut where a forward may be a part of a step";
  EXPECT_EQ(AsksOf(&tracker, forward, true), 3);
  EXPECT_EQ(tracker.pass(), 1);
  EXPECT_EQ(AsksOf(&tracker, forward, true), 1) << "where the pass ends";
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(AsksOf(&tracker, forward, true), 0);
  EXPECT_EQ(tracker.pass(), 1002);
  EXPECT_EQ(tracker.sequence(), 0);
  EXPECT_EQ(AsksOf(&tracker, step, false), 2) << "the backward and the step";
  tracker.StepCommitted();
  EXPECT_EQ(tracker.pass(), 0);
  EXPECT_EQ(AsksOf(&tracker, step, false), 0);
}

TEST(OrderTrackerTest, ForwardOfEachStepIsNotCutOffFromIt) {
  OrderTracker tracker;
  const std::vector<OrderEntry> forward = {{OpKind::kUnshard, 0}};
  const std::vector<OrderEntry> rest = {{OpKind::kUnshard, 0}, {OpKind::kStep}};
  for (int step = 0; step < 3; ++step) {
    const int asks = AsksOf(&tracker, forward, true) + AsksOf(&tracker, rest, false);
    EXPECT_EQ(asks, step == 0 ? 3 : 0);
    tracker.StepCommitted();
  }
}

TEST(OrderTrackerTest, EachFieldOfAnEntryCounts) {
  OrderTracker tracker;
  tracker.Issued(Entry(1));
  tracker.StepCommitted();
  EXPECT_EQ(tracker.Check({OpKind::kReduce, 1, DType::kFp32, 10}), OrderVerdict::kAsk);
  EXPECT_EQ(tracker.Check({OpKind::kUnshard, 1, DType::kBf16, 10}), OrderVerdict::kAsk);
  EXPECT_EQ(tracker.Check({OpKind::kUnshard, 1, DType::kFp32, 11}), OrderVerdict::kAsk);
  EXPECT_EQ(tracker.Check({OpKind::kUnshard, 1, DType::kFp32, 10}), OrderVerdict::kProceed);
}

TEST(OrderTrackerTest, HashTellsOrdersApartAndStartsAnewWithEachStep) {
  OrderTracker a, b;
  const uint64_t empty = a.hash();
  a.Issued(Entry(0));
  a.Issued(Entry(1));
  b.Issued(Entry(1));
  b.Issued(Entry(0));
  EXPECT_NE(a.hash(), b.hash());
  a.StepCommitted();
  EXPECT_EQ(a.hash(), empty);
}

TEST(UnitStateTest, TableOfAllTransitions) {
  constexpr UnitState kRefused = static_cast<UnitState>(99);
  const UnitState S = UnitState::kSharded, I = UnitState::kUnsharding, U = UnitState::kUnsharded;
  const struct {
    UnitEvent event;
    UnitState from_sharded, from_unsharding, from_unsharded;
  } kTable[] = {
      {UnitEvent::kUnshard, I, kRefused, kRefused},
      {UnitEvent::kUnshardDone, kRefused, U, kRefused},
      {UnitEvent::kReshard, kRefused, kRefused, S},
      {UnitEvent::kReduce, S, kRefused, U},
      {UnitEvent::kInitialize, S, kRefused, U},
  };
  for (const auto& row : kTable) {
    const std::pair<UnitState, UnitState> cases[] = {
        {S, row.from_sharded}, {I, row.from_unsharding}, {U, row.from_unsharded}};
    for (const auto& [from, to] : cases) {
      const auto result = Transition(from, row.event, "blocks.1");
      if (to == kRefused) {
        EXPECT_THAT(result,
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'blocks.1'")));
      } else {
        ASSERT_OK(result);
        EXPECT_EQ(*result, to);
      }
    }
  }
}

TEST(GroupPageTest, FirstDecisionOfAStepStands) {
  auto page = std::make_unique<GroupPage>();
  HyperParameters numbers;
  numbers.learning_rate = 0.125;
  numbers.momentum = 0.75;
  std::vector<std::byte> memory(UpdateCounts::SizeBytes(2));
  const UpdateCounts counts(memory.data(), 2);
  RecordDecision(page.get(), counts, 1, {0.5, 2.0, {HyperParameters(), numbers}}, {true, false});
  RecordDecision(page.get(), counts, 1, {0.25, 4.0, {numbers, numbers}}, {true, true});
  EXPECT_THAT(counts.Load(1), testing::ElementsAre(1, 0));
  EXPECT_EQ(page->decided_step.load(), 1);
  const StepNumbers loaded = LoadDecision(*page, counts, 1, 2);
  EXPECT_EQ(loaded.gradient_scale, 0.5);
  EXPECT_EQ(loaded.gradient_norm, 2.0);
  ASSERT_EQ(loaded.groups.size(), 2);
  EXPECT_EQ(loaded.groups[0].learning_rate, 1e-3);
  EXPECT_EQ(loaded.groups[1].learning_rate, 0.125);
  EXPECT_EQ(loaded.groups[1].momentum, 0.75);
  EXPECT_EQ(loaded.groups[1].epsilon, 1e-8);
}

TEST(UpdateCountsTest, EachParameterCountsItsOwnUpdatesAndTheLastStepCanBeRepeated) {
  std::vector<std::byte> memory(UpdateCounts::SizeBytes(3));
  const UpdateCounts counts(memory.data(), 3);
  counts.Record(1, {true, false, true});
  EXPECT_THAT(counts.Load(1), testing::ElementsAre(1, 0, 1));
  counts.Record(2, {true, false, false});
  EXPECT_THAT(counts.Load(2), testing::ElementsAre(2, 0, 0));
  counts.Record(3, {true, true, true});
  counts.Record(3, {true, true, true});  // As every rank does.
  EXPECT_THAT(counts.Load(3), testing::ElementsAre(3, 1, 2));
}

TEST(GroupPageTest, PutIsFoundOnceItIsDecidedAndAfterLaterSteps) {
  auto page = std::make_unique<GroupPage>();
  StepNumbers put;
  put.is_write = true;
  put.put = 77;
  RecordDecision(page.get(), UpdateCounts(), 1, {}, {});
  EXPECT_FALSE(FindPut(*page, 77).has_value());
  RecordDecision(page.get(), UpdateCounts(), 2, put, {});
  EXPECT_EQ(FindPut(*page, 77)->step, 2) << "also where nobody applied it yet";
  EXPECT_FALSE(FindPut(*page, 78).has_value());
  RememberPut(page.get(), 77, 2);
  for (int64_t step = 3; step < 7; ++step) {
    RecordDecision(page.get(), UpdateCounts(), step, {}, {});
    EXPECT_EQ(FindPut(*page, 77)->step, 2);
    EXPECT_EQ(FindPut(*page, 77)->trained_step, 1);
  }
}

TEST(GroupPageTest, StepIsNotDecidedBeforeItsPredecessor) {
  auto page = std::make_unique<GroupPage>();
  RecordDecision(page.get(), UpdateCounts(), 2, {1.0, 1.0, {}}, {});
  EXPECT_EQ(page->decided_step.load(), 0);
}

TEST(GroupPageTest, IdIsChosenOnceForAMemoryAndIsNoOthers) {
  auto page = std::make_unique<GroupPage>(), other = std::make_unique<GroupPage>();
  const std::array<uint64_t, 2> id = IdOf(page.get());
  EXPECT_NE(id[0], 0);
  EXPECT_EQ(IdOf(page.get()), id);
  EXPECT_NE(IdOf(other.get()), id);
}

TEST(GroupPageTest, AppliedStepIsWhatPeersWaitFor) {
  auto page = std::make_unique<GroupPage>();
  PublishApplied(page.get(), 3, 7);
  EXPECT_EQ(page->ranks[3].applied_step.load(), 7);
  EXPECT_EQ(page->ranks[3].applied_version.value.load(), 7);
}

TEST(FlightRecorderTest, OperationsCarryTheirEpochAndASuccessorGoesOnNumbering) {
  auto ring = std::make_unique<FlightRing>();
  FormatFlightRing(ring.get());
  {
    FlightRecorder recorder(ring.get());
    recorder.BeginEpoch(Epoch(1));
    recorder.Started(recorder.Enqueued(5, 0, OpKind::kStep, -1, 0));
  }
  FlightRecorder recorder(ring.get());
  recorder.BeginEpoch(Epoch(2));
  const int64_t number = recorder.Enqueued(5, 3, OpKind::kReduce, 0, 100);
  recorder.Started(number);
  recorder.Done(number);
  ASSERT_OK_AND_ASSIGN(const FlightRecords read, ReadFlightRing(*ring, 1));
  ASSERT_EQ(read.records.size(), 2);
  EXPECT_EQ(read.records[0].epoch, 1);
  EXPECT_GT(read.records[0].started_ns, 0);
  EXPECT_EQ(read.records[0].done_ns, 0);
  EXPECT_EQ(read.records[0].stream, FlightStream::kEngine);
  EXPECT_EQ(read.records[1].number, 1);
  EXPECT_EQ(read.records[1].epoch, 2);
  EXPECT_EQ(read.records[1].sequence, 3);
  EXPECT_GE(read.records[1].done_ns, read.records[1].started_ns);
  EXPECT_EQ(read.records[1].stream, FlightStream::kPostBackward);
}

TEST(GradientNormTest, PartsOfTheShardsGiveTheNormOfTheWhole) {
  const std::vector<float> gradient = {3.0f, -4.0f, 0.5f, -0.25f, 12.0f};
  for (const double p : {0.5, 1.0, 2.0, 3.0, 4.5, std::numeric_limits<double>::infinity()}) {
    double whole = 0;
    for (const float g : gradient) {
      whole = std::isinf(p) ? std::max<double>(whole, std::fabs(g))
                            : whole + std::pow(std::fabs(static_cast<double>(g)), p);
    }
    if (!std::isinf(p)) whole = std::pow(whole, 1 / p);
    std::vector<double> parts(3);
    host::AddToNormPart(gradient.data(), 2, p, &parts[0]);
    host::AddToNormPart(gradient.data() + 2, 3, p, &parts[2]);  // Rank 1 has an empty shard.
    EXPECT_NEAR(CombineNormParts(parts, p), whole, 1e-12 * whole) << "p = " << p;
  }
}

TEST(GradientNormTest, NanOfOneRankMakesTheNormOne) {
  const std::vector<double> gradient = {1.0, std::nan(""), 2.0};
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    std::vector<double> parts = {5.0, 0.5, 7.0};
    host::AddToNormPart(gradient.data(), 3, p, &parts[1]);
    host::AddToNormPart(gradient.data(), 1, p, &parts[1]);
    EXPECT_TRUE(std::isnan(CombineNormParts(parts, p))) << "p = " << p;
  }
}

TEST(GradientNormTest, ClippingShortensWhatIsTooLongAndLeavesTheRest) {
  EXPECT_EQ(ClipCoefficient(0, 5), 1.0) << "no clipping";
  EXPECT_EQ(ClipCoefficient(5, 2), 1.0);
  EXPECT_DOUBLE_EQ(ClipCoefficient(1, 4), 1 / (4 + 1e-6));
}

class BallotTest : public testing::Test {
 protected:
  void SetUp() override {
    model_.units.push_back({"u", {{"w", {8}, DType::kFp32}}});
    ASSERT_OK_AND_ASSIGN(layout_, ModelLayout::Create(model_, JobConfig().layout, 2));
  }
  Tally Count(const Vote& a, const Vote& b, double divisor = 1.0) {
    const std::byte touched[] = {std::byte{0}, std::byte{1}, std::byte{0}};
    const std::byte others[] = {std::byte{0}, std::byte{0}, std::byte{7}};
    std::vector<std::byte> ballots = EncodeBallot(a, touched, 3);
    const std::vector<std::byte> second = EncodeBallot(b, others, 3);
    ballots.insert(ballots.end(), second.begin(), second.end());
    return CountBallots(ballots, divisor, clip_, layout_, 3);
  }

  ClipRule clip_;
  ModelSpec model_;
  ModelLayout layout_;
};

TEST_F(BallotTest, NormTakesInAllDivisionsAndAParameterCountsIfAnyRankTouchedIt) {
  Vote a, b;
  a.norm_part = 9;
  b.norm_part = 16;
  EXPECT_EQ(Count(a, b).gradient_norm, 5.0);
  EXPECT_EQ(Count(a, b).gradient_scale, 1.0);
  EXPECT_EQ(Count(a, b, 4.0).gradient_norm, 1.25);
  EXPECT_THAT(Count(a, b).touched, testing::ElementsAre(false, true, true));
  a.weight = 30;
  b.weight = 10;
  EXPECT_EQ(Count(a, b).gradient_scale, 2.0 / 40) << "of the mean over two ranks";
  clip_.max_norm = 0.125;
  EXPECT_DOUBLE_EQ(Count(a, b).gradient_scale, 0.05 * 0.125 / (0.25 + 1e-6));
}

TEST_F(BallotTest, InfiniteScaleIsRefusedBeforeItIsDecided) {
  Vote a, b;
  constexpr double kTiny = 1e-310;  // Its inverse is infinite.
  EXPECT_THAT(Count(a, b, kTiny).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("would be infinite")));
  a.weight = b.weight = kTiny;
  EXPECT_THAT(Count(a, b).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("would be infinite")));
  a.weight = b.weight = 1;
  EXPECT_OK(Count(a, b).status);
}

TEST_F(BallotTest, TallyClipsAsTheTrainerSaysOrElseAsTheJob) {
  auto control = std::make_unique<ControlPage>();
  JobConfig config;
  config.gradient_norm_p = 3;
  config.max_gradient_norm = 0.5;
  ASSERT_OK_AND_ASSIGN(ClipRule clip, TallyClipRule(*control, config));
  EXPECT_EQ(clip.p, 3);
  EXPECT_EQ(clip.max_norm, 0.5);
  control->tally_norm_p = std::numeric_limits<double>::infinity();
  control->tally_max_norm = 2;
  ASSERT_OK_AND_ASSIGN(clip, TallyClipRule(*control, config));
  EXPECT_EQ(clip.p, std::numeric_limits<double>::infinity());
  EXPECT_EQ(clip.max_norm, 2);
  EXPECT_NE(HashNumbers(Op(), {}, clip), HashNumbers(Op(), {}, ClipRule()));
  for (const double bad : {-1.0, 0.0, std::nan("")}) {
    control->tally_max_norm = bad;
    EXPECT_THAT(TallyClipRule(*control, config),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("clipped to")));
  }
  control->tally_norm_p = std::nan("");
  EXPECT_THAT(TallyClipRule(*control, config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("p = nan")));
}

TEST_F(BallotTest, WhatRanksGiveDifferentlyIsNamed) {
  Vote a, b;
  b.numbers_hash = 1;
  EXPECT_THAT(Count(a, b).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 and 1")));
  b = Vote();
  b.reduced_units_hash = 1;
  EXPECT_THAT(Count(a, b).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("different units")));
  b = Vote();
  b.first_non_finite_unit = 0;
  EXPECT_THAT(Count(a, b).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unit 'u'")));
  EXPECT_TRUE(Count(a, b).non_finite);
  a.weight = b.weight = 0;
  b.first_non_finite_unit = -1;
  EXPECT_THAT(Count(a, b).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("add up to 0")));
}

TEST_F(BallotTest, SaveIsWantedOfAStepWhereAllRanksSayTheSame) {
  Vote a, b;
  EXPECT_EQ(Count(a, b).wanted_save, 0);
  a.wanted_save = 7;
  EXPECT_EQ(Count(a, b).wanted_save, 0) << "rank 1 has not heard of it";
  EXPECT_EQ(Count(b, a).wanted_save, 0);
  b.wanted_save = 8;
  EXPECT_EQ(Count(a, b).wanted_save, 0) << "rank 1 has heard of the next one already";
  b.wanted_save = 7;
  EXPECT_EQ(Count(a, b).wanted_save, 7);
}

}  // namespace
}  // namespace tessera
