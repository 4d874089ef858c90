#include "coordinator/core/event_log.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;

constexpr size_t kAllBytes = SIZE_MAX;
const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

ClusterEvent OfJob(const std::string& job, std::string text = "x",
                   EventKind kind = EventKind::kJobState) {
  ClusterEvent event;
  event.kind = kind;
  event.job = JobId(job);
  event.text = std::move(text);
  return event;
}
ClusterEvent OfWorker(const std::string& worker) {
  ClusterEvent event;
  event.kind = EventKind::kWorkerJoined;
  event.worker = WorkerId(worker);
  return event;
}

bool Any(const ClusterEvent&) { return true; }

std::vector<int64_t> Numbers(const EventLog::Page& page) {
  std::vector<int64_t> numbers;
  for (const ClusterEvent& event : page.events) numbers.push_back(event.number);
  return numbers;
}

TEST(EventLogTest, EventsAreNumberedFromOneAndHaveTheTimesThatWereGiven) {
  EventLog log;
  EXPECT_EQ(log.After(0, 10, kAllBytes, Any).first_number, 0);
  EXPECT_EQ(log.After(0, 10, kAllBytes, Any).last_number, 0);
  log.Add(OfJob("a", "one"), kStart);
  log.Add(OfWorker("w"), kStart + absl::Seconds(2));
  const EventLog::Page page = log.After(0, 10, kAllBytes, Any);
  EXPECT_THAT(Numbers(page), ElementsAre(1, 2));
  EXPECT_EQ(page.events[0].text, "one");
  EXPECT_EQ(page.events[0].time, kStart);
  EXPECT_EQ(page.events[1].time, kStart + absl::Seconds(2));
  EXPECT_EQ(page.first_number, 1);
  EXPECT_EQ(page.last_number, 2);
}

TEST(EventLogTest, PagesAreBoundedByEventsAndBytesAndGoOnAfterTheLastOne) {
  EventLog log;
  for (int i = 0; i < 5; ++i)
    log.Add(OfJob(i % 2 == 0 ? "a" : "b", std::string(1000, 'x')), kStart);
  EXPECT_THAT(Numbers(log.After(0, 2, kAllBytes, Any)), ElementsAre(1, 2));
  EXPECT_THAT(Numbers(log.After(2, 2, kAllBytes, Any)), ElementsAre(3, 4));
  EXPECT_THAT(Numbers(log.After(4, 2, kAllBytes, Any)), ElementsAre(5));
  EXPECT_THAT(Numbers(log.After(0, 10, /*max_bytes=*/1500, Any)), ElementsAre(1, 2));
  const auto of_b = [](const ClusterEvent& event) { return event.job == JobId("b"); };
  const EventLog::Page page = log.After(0, 10, kAllBytes, of_b);
  EXPECT_THAT(Numbers(page), ElementsAre(2, 4));
  EXPECT_EQ(page.last_number, 5) << "of all jobs";
}

TEST(EventLogTest, KeepsTheNewestAndSaysWhichIsTheFirst) {
  EventLog log;
  const auto total = static_cast<int64_t>(EventLog::kMaxEvents) + 3;
  for (int64_t i = 0; i < total; ++i) log.Add(OfJob(absl::StrCat("j", i % 1000)), kStart);
  const EventLog::Page page = log.After(0, SIZE_MAX, kAllBytes, Any);
  EXPECT_EQ(page.events.size(), EventLog::kMaxEvents);
  EXPECT_EQ(page.first_number, 4);
  EXPECT_EQ(page.events[0].number, 4);
  EXPECT_EQ(page.last_number, total);
}

TEST(EventLogTest, JobOrWorkerThatFloodsItDisplacesItsOwnEventsOnly) {
  EventLog log;
  log.Add(OfJob("quiet"), kStart);
  log.Add(OfWorker("quiet"), kStart);
  log.Add(OfWorker("loud"), kStart);
  for (int i = 0; i < 50'000; ++i) {
    log.Add(OfJob("loud"), kStart);
    log.Add(OfWorker("loud"), kStart);
  }
  const EventLog::Page page = log.After(0, SIZE_MAX, kAllBytes, Any);
  EXPECT_EQ(page.events.size(), 2 + 2 * EventLog::kMaxEventsOfSource);
  EXPECT_THAT(Numbers(log.After(0, 2, kAllBytes, Any)), ElementsAre(1, 2));
  EXPECT_EQ(page.events.back().number, 100'003);
}

TEST(EventLogTest, BytesOfAllTogetherAreBounded) {
  EventLog log;
  const std::string text(EventLog::kMaxTextBytes, 'x');
  for (size_t i = 0; i < EventLog::kMaxEvents; ++i)
    log.Add(OfJob(absl::StrCat("j", i % 1000), text), kStart);
  const EventLog::Page page = log.After(0, SIZE_MAX, kAllBytes, Any);
  EXPECT_LT(page.events.size() * EventLog::kMaxTextBytes, EventLog::kMaxBytes);
  EXPECT_GT(page.events.size() * EventLog::kMaxTextBytes, EventLog::kMaxBytes / 2);
  EXPECT_EQ(page.events.back().number, static_cast<int64_t>(EventLog::kMaxEvents));
}

TEST(EventLogTest, TextsAreCutBetweenCharactersAndPrintable) {
  EventLog log;
  std::string text = "x";
  while (text.size() < 2 * EventLog::kMaxTextBytes) text += "\xe9\x94\x99";  // 3 bytes.
  log.Add(OfJob("a", text), kStart);
  log.Add(OfJob("a", "\x1b[2J\xff"), kStart);
  log.Add(OfJob("a", std::string(EventLog::kMaxTextBytes, '\x01')), kStart);
  const EventLog::Page page = log.After(0, 10, kAllBytes, Any);
  EXPECT_EQ(page.events[0].text, text.substr(0, page.events[0].text.size()));
  EXPECT_EQ(page.events[0].text.size() % 3, 1) << "it ends after a character";
  EXPECT_LE(page.events[0].text.size(), EventLog::kMaxTextBytes);
  EXPECT_GT(page.events[0].text.size(), EventLog::kMaxTextBytes - 3);
  EXPECT_EQ(page.events[1].text, "\\x1b[2J\\xff");
  EXPECT_LE(page.events[2].text.size(), EventLog::kMaxTextBytes);
}

TEST(EventLogTest, CountsEachKindAlsoOfEventsThatAreGone) {
  EventLog log;
  for (size_t i = 0; i < EventLog::kMaxEventsOfSource + 5; ++i) log.Add(OfJob("a"), kStart);
  log.Add(OfJob("a", "x", EventKind::kOrderMismatch), kStart);
  EXPECT_EQ(log.counts().at(EventKind::kJobState), EventLog::kMaxEventsOfSource + 5);
  EXPECT_EQ(log.counts().at(EventKind::kOrderMismatch), 1);
  EXPECT_EQ(log.counts().count(EventKind::kWorkerLost), 0);
}

}  // namespace
}  // namespace tessera::coordinator
