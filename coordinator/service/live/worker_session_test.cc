#include "coordinator/service/live/worker_session.h"

#include <atomic>
#include <thread>

#include "base/status_matchers.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

bool Never() { return false; }
bool Always() { return true; }
absl::Time Soon() { return SteadyNow() + absl::Milliseconds(5); }
absl::Time Late() { return SteadyNow() + absl::Minutes(1); }

v1::LiveEvent Held(int64_t step) {
  v1::LiveEvent event;
  event.mutable_held()->set_step(step);
  return event;
}

v1::LiveEvent Failure(int code, const std::string& message) {
  v1::LiveEvent event;
  event.mutable_failure()->set_code(code);
  event.mutable_failure()->set_message(message);
  return event;
}

TEST(WorkerSessionTest, OnlyTheWorkerThatIsAwaitedFindsItsSession) {
  LiveSessions hub;
  LiveSession session(&hub);
  std::vector<std::string> told;
  ASSERT_OK(session.Open({WorkerId("v"), WorkerId("w")},
                         [&](const WorkerId& worker, const std::string& name) {
                           told.push_back(worker.value());
                           EXPECT_NE(hub.Find(name, worker.value()), nullptr) << "it may come now";
                           return true;
                         }));
  EXPECT_EQ(told, (std::vector<std::string>{"v", "w"}));
  const std::string name = session.name();
  EXPECT_NE(name, NewSessionName());
  EXPECT_NE(NewSessionName(), NewSessionName());
  const auto line = session.lines()[1];
  EXPECT_EQ(hub.Find(name, "w"), line);
  EXPECT_EQ(hub.Find(name, "x"), nullptr);
  EXPECT_EQ(hub.Find("another", "w"), nullptr);
  EXPECT_TRUE(line->Attach([] {}));
  EXPECT_FALSE(line->Attach([] {}));
  session.Close();
  EXPECT_EQ(hub.Find(name, "w"), nullptr);
  EXPECT_TRUE(session.lines().empty());
  EXPECT_THAT(line->Next(Late(), Never), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST(WorkerSessionTest, WorkerThatIsNotConnectedIsNamed) {
  LiveSessions hub;
  LiveSession session(&hub);
  EXPECT_THAT(session.Open(
                  {WorkerId("v"), WorkerId("w")},
                  [](const WorkerId& worker, const std::string&) { return worker.value() == "v"; }),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'w' is not connected")));
}

TEST(WorkerLineTest, WorkerWaitsWhileNobodyReads) {
  LiveLine line("w");
  std::atomic<int> pushed{0};
  std::thread stream([&] {
    for (int64_t step = 0; line.Push(Held(step)); ++step) pushed.store(step + 1);
  });
  for (int64_t step = 0; step < 100; ++step) {
    ASSERT_EQ(line.Next(Late(), Never)->held().step(), step);
    EXPECT_LE(pushed.load() - (step + 1), static_cast<int64_t>(LiveLine::kMaxQueued));
  }
  line.Close();
  stream.join();
}

TEST(WorkerLineTest, ClientWaitsWhileTheWorkerTakesNothing) {
  PutLine line("w");
  for (size_t i = 0; i < PutLine::kMaxQueued; ++i) ASSERT_OK(line.Send({}, Late(), Never));
  EXPECT_THAT(line.Send({}, Soon(), Never),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker 'w' accepts no")));
  EXPECT_THAT(line.Send({}, Late(), Always), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  std::thread stream([&] { EXPECT_TRUE(line.Pop().has_value()); });
  EXPECT_OK(line.Send({}, Late(), Never));
  stream.join();
  line.Close();
  EXPECT_FALSE(line.Pop().has_value());
}

TEST(WorkerLineTest, FailureComesAfterTheEventsBeforeItEndsAWaitToSendAndStays) {
  LiveLine line("w");
  ASSERT_TRUE(line.Push(Held(7)));
  EXPECT_FALSE(line.has_failed());
  for (size_t i = 0; i < LiveLine::kMaxQueued; ++i) ASSERT_OK(line.Send({}, Late(), Never));
  std::thread stream([&] {
    EXPECT_TRUE(
        line.Push(Failure(static_cast<int>(absl::StatusCode::kResourceExhausted), "no room")));
  });
  EXPECT_THAT(line.Send({}, Late(), Never),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("worker 'w': no room")));
  stream.join();
  EXPECT_TRUE(line.has_failed());
  EXPECT_FALSE(line.has_ended());
  EXPECT_EQ(line.Next(Late(), Never)->held().step(), 7);
  EXPECT_TRUE(line.has_ended());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(line.Next(Late(), Never),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("worker 'w': no room")));
  }
  LiveLine other("x");
  ASSERT_TRUE(other.Push(Failure(99, "what")));
  EXPECT_THAT(other.Next(Late(), Never),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("what")));
}

TEST(WorkerLineTest, WhatEndsItIsSaidByNameAndCloseEndsTheStream) {
  LiveLine line("w");
  int closed = 0;
  ASSERT_TRUE(line.Attach([&] { ++closed; }));
  EXPECT_THAT(line.Next(Soon(), Never),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker 'w' does not")));
  EXPECT_THAT(line.Next(Late(), Always), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  line.Close();
  EXPECT_EQ(closed, 1);
  EXPECT_FALSE(line.Pop().has_value());
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
