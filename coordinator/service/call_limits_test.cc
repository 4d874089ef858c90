#include "coordinator/service/call_limits.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Place = CallLimits::Place;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kLater = absl::StatusCode::kUnavailable;  // Clients call again by themselves.

// As many as it gets.
std::vector<Place> Fill(CallLimits* limits, const std::string& client, CallKind kind) {
  std::vector<Place> places;
  while (true) {
    absl::StatusOr<Place> place = limits->Enter(client, kind);
    if (!place.ok()) return places;
    places.push_back(*std::move(place));
  }
}

bool Never() { return false; }

TEST(CallLimitsTest, OneClientGetsHalfAndIsToldHowManyItHas) {
  CallLimits limits(20);
  std::vector<Place> places = Fill(&limits, "uid:1", CallKind::kWaiting);
  EXPECT_EQ(places.size(), 10);
  EXPECT_THAT(limits.Enter("uid:1", CallKind::kWaiting),
              StatusIs(kLater, AllOf(HasSubstr("'uid:1' has 10 calls that wait"),
                                     HasSubstr("of the 20 of all clients (--max-calls) 10"),
                                     HasSubstr("end some of them"))));
  places.pop_back();
  EXPECT_OK(limits.Enter("uid:1", CallKind::kWaiting));
}

TEST(CallLimitsTest, HoweverManyClientsTakeAllTheyCanThereIsAPlaceForOneThatHasNone) {
  CallLimits limits(64);
  std::vector<std::vector<Place>> greedy;
  for (int i = 0; i < 40; ++i) {
    EXPECT_OK(limits.Enter("honest", CallKind::kShort)) << "beside " << i;
    greedy.push_back(Fill(&limits, absl::StrCat("uid:", i), CallKind::kShort));
  }
  EXPECT_OK(limits.Enter("honest", CallKind::kShort));
}

TEST(CallLimitsTest, CallsThatWaitTakeNoPlaceOfOthersNorDoThoseOfWorkers) {
  CallLimits limits(20);
  const auto waiting = Fill(&limits, "uid:1", CallKind::kWaiting);
  const auto of_workers = Fill(&limits, "uid:1", CallKind::kOfWorker);
  EXPECT_EQ(of_workers.size(), 10);
  EXPECT_EQ(Fill(&limits, "uid:1", CallKind::kShort).size(), 10);
}

TEST(CallLimitsTest, PlaceThatIsLeftOrMovedIsGivenBackOnce) {
  CallLimits limits(20);
  std::vector<Place> places = Fill(&limits, "uid:1", CallKind::kShort);
  {
    Place moved = std::move(places.back());
    places.pop_back();
    EXPECT_THAT(limits.Enter("uid:1", CallKind::kShort), StatusIs(kLater, HasSubstr("uid:1")));
    moved.Leave();
    moved.Leave();
    EXPECT_OK(limits.Enter("uid:1", CallKind::kShort));
  }
  EXPECT_EQ(Fill(&limits, "uid:1", CallKind::kShort).size(), 1);
}

TEST(CallLimitsTest, WhatWaitingCallsHoldIsShared) {
  CallLimits limits(8);
  std::optional<Place> place = *limits.Enter("uid:1", CallKind::kWaiting);
  ASSERT_OK(place->Hold(CallLimits::kMaxHeldBytes / 2));
  EXPECT_THAT(place->Hold(1), StatusIs(kExhausted, HasSubstr("'uid:1' that wait have 33554432")));
  Place other = *limits.Enter("uid:2", CallKind::kWaiting);
  EXPECT_OK(other.Hold(CallLimits::kMaxHeldBytes / 4));
  EXPECT_THAT(other.Hold(1), StatusIs(kExhausted, HasSubstr("uid")));
  place.reset();
  EXPECT_OK(other.Hold(CallLimits::kMaxHeldBytes / 4));
}

TEST(CallLimitsTest, FewRequestsOfAClientAreReadAtATime) {
  CallLimits limits(8);
  const auto take = [&](const std::string& client, absl::Time deadline) {
    return limits.TakeTurn(client, CallLimits::Of::kReading, deadline, Never);
  };
  ASSERT_OK_AND_ASSIGN(CallLimits::Turn turn, take("uid:1", absl::InfinitePast()));
  EXPECT_THAT(take("uid:1", absl::InfinitePast()),
              StatusIs(kLater, HasSubstr("other calls of 'uid:1' send requests")));
  EXPECT_OK(take("uid:2", absl::InfinitePast()));
  EXPECT_OK(limits.TakeTurn("uid:1", CallLimits::Of::kReplying, absl::InfinitePast(), Never));
  EXPECT_THAT(limits.TakeTurn("uid:1", CallLimits::Of::kReading, absl::InfiniteFuture(),
                              [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("gone")));
  std::thread waits([&] { EXPECT_OK(take("uid:1", absl::InfiniteFuture())); });
  turn = nullptr;
  waits.join();
}

TEST(CallLimitsTest, OneThatTakesLongLetsAFewMoreBeReadInTheOrderInWhichTheyAsked) {
  CallLimits limits(8);
  absl::Time now = SteadyNow();
  std::vector<int> order;
  std::vector<CallLimits::Turn> turns;
  std::vector<std::unique_ptr<CallLimits::TurnRequest>> requests;
  for (int i = 0; i < 2 * CallLimits::kReadsAtOnce; ++i) {
    requests.push_back(std::make_unique<CallLimits::TurnRequest>(
        &limits, "uid:1", CallLimits::Of::kReading, [&, i](CallLimits::Turn turn) {
          order.push_back(i);
          turns.push_back(std::move(turn));
        }));
    requests.back()->Ask();
  }
  for (int taken = 1; taken <= 2 * CallLimits::kReadsAtOnce; ++taken) {
    EXPECT_EQ(turns.size(), std::min(taken, CallLimits::kReadsAtOnce));
    now += 2 * CallLimits::kBetweenReads;
    limits.LetMoreIn(now);
    limits.LetMoreIn(now);  // Only one more at a time.
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_TRUE(requests.back()->Withdraw());
  EXPECT_FALSE(requests.back()->Withdraw());
  EXPECT_FALSE(requests.front()->Withdraw()) << "it had its turn";
  while (!turns.empty()) {
    const std::vector<CallLimits::Turn> ended = std::exchange(turns, {});
  }
  EXPECT_EQ(order.size(), 2 * CallLimits::kReadsAtOnce - 1);
}

}  // namespace
}  // namespace tessera::coordinator
