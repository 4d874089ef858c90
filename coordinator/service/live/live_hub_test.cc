#include "coordinator/service/live/live_hub.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "coordinator/service/live/live_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

const JobId kJob("toy");
bool Never() { return false; }
absl::Time Soon() { return absl::Now() + absl::Milliseconds(5); }
absl::Time Late() { return absl::Now() + absl::Minutes(1); }

v1::LiveEvent Held(int64_t step) {
  v1::LiveEvent event;
  event.mutable_held()->set_step(step);
  return event;
}

TEST(LiveHubTest, ReadingsOfAJobAreLimitedByName) {
  LiveHub hub;
  for (int i = 0; i < LiveHub::kMaxReadingsOfAJob; ++i) ASSERT_OK(hub.Enter(kJob));
  EXPECT_THAT(hub.Enter(kJob),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("job 'toy': 4 clients")));
  EXPECT_OK(hub.Enter(JobId("other")));
  hub.Leave(kJob);
  EXPECT_OK(hub.Enter(kJob));
}

TEST(LiveHubTest, OneOfAJobHasTheTurn) {
  LiveHub hub;
  ASSERT_OK(hub.TakeTurn(kJob, Late(), Never));
  EXPECT_THAT(hub.TakeTurn(kJob, Soon(), Never),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'toy'")));
  EXPECT_THAT(hub.TakeTurn(kJob, Late(), [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  std::thread second([&] { EXPECT_OK(hub.TakeTurn(kJob, Late(), Never)); });
  hub.EndTurn(kJob);
  second.join();
}

TEST(LiveHubTest, OnlyTheWorkerThatIsAwaitedFindsItsSession) {
  LiveHub hub;
  const std::string session = LiveHub::NewSession();
  EXPECT_NE(session, LiveHub::NewSession());
  const auto line = std::make_shared<LiveLine>("w");
  hub.Expect(session, line);
  EXPECT_EQ(hub.Find(session, "w"), line);
  EXPECT_EQ(hub.Find(session, "x"), nullptr);
  EXPECT_EQ(hub.Find("another", "w"), nullptr);
  EXPECT_TRUE(line->Attach([] {}));
  EXPECT_FALSE(line->Attach([] {}));
  hub.Forget(session, "w");
  EXPECT_EQ(hub.Find(session, "w"), nullptr);
}

TEST(LiveLineTest, WorkerWaitsWhileNobodyReads) {
  LiveLine line("w");
  std::atomic<int> pushed{0};
  std::thread stream([&] {
    for (int64_t step = 0; line.Push(Held(step)); ++step) pushed.store(step + 1);
  });
  for (int64_t step = 0; step < 100; ++step) {
    ASSERT_EQ(line.Next(Late(), Never)->held().step(), step);
    EXPECT_LE(pushed.load() - (step + 1), static_cast<int64_t>(LiveLine::kMaxEvents));
  }
  line.Close();
  stream.join();
}

TEST(LiveLineTest, WhatEndsItIsSaidByNameAndCloseEndsTheStream) {
  LiveLine line("w");
  int closed = 0;
  ASSERT_TRUE(line.Attach([&] { ++closed; }));
  EXPECT_THAT(line.Next(Soon(), Never),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker 'w'")));
  EXPECT_THAT(line.Next(Late(), [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  v1::LiveEvent failure;
  failure.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  failure.mutable_failure()->set_message("no room");
  ASSERT_TRUE(line.Push(failure));
  EXPECT_THAT(line.Next(Late(), Never),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("worker 'w': no room")));
  failure.mutable_failure()->set_code(99);
  ASSERT_TRUE(line.Push(failure));
  EXPECT_THAT(line.Next(Late(), Never),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no room")));
  line.Close();
  EXPECT_EQ(closed, 1);
  EXPECT_FALSE(line.AwaitCommand(Never).has_value());
  EXPECT_FALSE(line.Push(Held(1)));
  EXPECT_THAT(line.Next(Late(), Never), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  LiveLine other("x");
  ASSERT_TRUE(other.Attach([&] { ++closed; }));
  ASSERT_TRUE(other.Push(Held(7)));
  other.Detach();
  EXPECT_EQ(other.Next(Late(), Never)->held().step(), 7);
  EXPECT_THAT(other.Next(Late(), Never),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'x' ended its stream")));
  other.Close();
  EXPECT_EQ(closed, 1);
}

}  // namespace
}  // namespace tessera::coordinator
