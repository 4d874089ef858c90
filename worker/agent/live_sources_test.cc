// What a session and a call tell each other; what they read is StateSnapshot's.
#include "worker/agent/live_sources.h"

#include <thread>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

bool Never() { return false; }

TEST(LiveSourceTest, IsFetchedOnceAndEndsAsTheFetchDid) {
  LiveSource source(nullptr);
  ASSERT_TRUE(source.Enter([] {}));
  EXPECT_FALSE(source.Enter([] {}));
  std::thread call([&] { source.Leave(absl::DataLossError("spool")); });
  EXPECT_THAT(source.AwaitEnd(absl::InfiniteDuration(), Never),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("spool")));
  call.join();
}

TEST(LiveSourceTest, ClientThatDoesNotComeOrTakesNothingIsWaitedForSoLong) {
  LiveSource nobody(nullptr), slow(nullptr);
  EXPECT_THAT(nobody.AwaitEnd(absl::Milliseconds(1), Never),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("did not come for 1ms")));
  ASSERT_TRUE(slow.Enter([] {}));
  EXPECT_THAT(slow.AwaitEnd(absl::Milliseconds(1), Never),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("took nothing for 1ms")));
}

TEST(LiveSourceTest, LullEndsWhereThereIsHurryOrNothingIsTakenOrAllWas) {
  LiveSource source(nullptr);
  int looks = 0;
  source.AwaitLull(absl::InfiniteDuration(), [&] { return ++looks == 3; });
  EXPECT_EQ(looks, 3);
  source.AwaitLull(absl::Milliseconds(1), Never);
  ASSERT_TRUE(source.Enter([] {}));
  std::thread call([&] { source.Leave(absl::OkStatus()); });
  source.AwaitLull(absl::InfiniteDuration(), Never);
  call.join();
}

TEST(LiveSourceTest, EndOfTheSessionIsNoticedAndEndsTheCall) {
  LiveSource source(nullptr);
  int cancelled = 0;
  ASSERT_TRUE(source.Enter([&] { ++cancelled; }));
  EXPECT_THAT(source.AwaitEnd(absl::InfiniteDuration(), [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("ended")));
  source.Close();
  source.Close();
  EXPECT_EQ(cancelled, 1);
  LiveSource closed(nullptr);
  closed.Close();
  EXPECT_FALSE(closed.Enter([] {}));
}

TEST(LiveSourceTest, CallThatHasLeftIsNotCancelled) {
  LiveSource source(nullptr);
  ASSERT_TRUE(source.Enter([] { FAIL() << "it may be gone"; }));
  source.Leave(absl::OkStatus());
  source.Close();
  EXPECT_OK(source.AwaitEnd(absl::InfiniteDuration(), Never));
}

TEST(LiveSourcesTest, AreFoundByTheirSessionUntilTheyAreRemoved) {
  LiveSources sources;
  const auto source = std::make_shared<LiveSource>(nullptr);
  sources.Add("s1", source);
  EXPECT_EQ(sources.Find("s1"), source);
  EXPECT_EQ(sources.Find("s2"), nullptr);
  sources.Remove("s1");
  EXPECT_EQ(sources.Find("s1"), nullptr);
}

}  // namespace
}  // namespace tessera
