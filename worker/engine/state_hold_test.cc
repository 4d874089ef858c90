#include "worker/engine/state_hold.h"

#include <array>
#include <thread>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Milliseconds(5); }
absl::Time Late() { return absl::Now() + absl::Minutes(1); }

TEST(StateHoldTest, WriterOfTheStepAfterNextWaitsAndTheOneBeforeItDoesNot) {
  StateHold hold;
  const std::atomic<int64_t> applied{4};
  EXPECT_TRUE(TryBeginWriting(&hold, 5));
  ASSERT_EQ(HoldNewest(&hold, applied).value(), 4);
  EXPECT_TRUE(TryBeginWriting(&hold, 5));
  EXPECT_FALSE(TryBeginWriting(&hold, 6));
  std::thread writer(
      [&] { EXPECT_EQ(BeginWriting(&hold, 6, AbortFlag(), Late()).value(), WriteBegin::kWaited); });
  while (hold.changes.sleepers.load() == 0) std::this_thread::yield();
  EXPECT_TRUE(Release(&hold, 4));
  writer.join();
  EXPECT_EQ(BeginWriting(&hold, 6, AbortFlag(), Late()).value(), WriteBegin::kAtOnce);
}

TEST(StateHoldTest, VersionThatIsBeingOverwrittenIsNotHeld) {
  StateHold hold;
  const std::atomic<int64_t> applied{4};
  EXPECT_TRUE(TryBeginWriting(&hold, 6));  // The reader's word is older than the writer's.
  EXPECT_THAT(HoldNewest(&hold, applied),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("faster than a reader")));
  EXPECT_EQ(hold.held.load(), 0);
}

TEST(StateHoldTest, HoldMovesToAStepThatIsNotWholeYet) {
  StateHold hold;
  std::atomic<int64_t> applied{4};
  ASSERT_EQ(HoldNewest(&hold, applied).value(), 4);
  EXPECT_FALSE(TryBeginWriting(&hold, 6));
  ASSERT_THAT(MoveHold(&hold, 4, 6), IsOk());
  EXPECT_TRUE(TryBeginWriting(&hold, 6));
  EXPECT_TRUE(TryBeginWriting(&hold, 7));
  EXPECT_FALSE(TryBeginWriting(&hold, 8));
  EXPECT_TRUE(Release(&hold, 6));
}

TEST(StateHoldTest, ReaderThatHangsLosesItsHoldAndIsTold) {
  StateHold hold;
  const std::atomic<int64_t> applied{4};
  ASSERT_EQ(HoldNewest(&hold, applied).value(), 4);
  EXPECT_EQ(BeginWriting(&hold, 6, AbortFlag(), Soon()).value(), WriteBegin::kBrokeHold);
  EXPECT_THAT(MoveHold(&hold, 4, 5), StatusIs(absl::StatusCode::kAborted, HasSubstr("step 4")));
  EXPECT_FALSE(Release(&hold, 4));
}

TEST(StateHoldTest, AbortEndsTheWaitAndLeavesTheHold) {
  StateHold hold;
  const std::atomic<int64_t> applied{4};
  ASSERT_EQ(HoldNewest(&hold, applied).value(), 4);
  const std::atomic<uint32_t> aborted{1};
  EXPECT_THAT(BeginWriting(&hold, 6, AbortFlag(&aborted), Late()).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("")));
  EXPECT_TRUE(Release(&hold, 4));
}

TEST(StateHoldTest, SecondReaderIsRefused) {
  StateHold hold;
  const std::atomic<int64_t> applied{4};
  ASSERT_EQ(HoldNewest(&hold, applied).value(), 4);
  EXPECT_THAT(HoldNewest(&hold, applied),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another reader")));
  EXPECT_TRUE(Release(&hold, 4));
}

// A writer that never rests and a reader that copies: whatever was copied under a hold that stood
// is of one step.
TEST(StateHoldTest, CopiesUnderAHoldThatStoodAreOfOneStep) {
  constexpr int kNumel = 256;
  constexpr int64_t kSteps = 20'000;
  StateHold hold;
  std::atomic<int64_t> applied{0};
  std::array<std::array<std::atomic<int64_t>, kNumel>, 2> versions = {};
  std::thread writer([&] {
    for (int64_t step = 1; step <= kSteps; ++step) {
      // Every so often it does not wait at all.
      const absl::Time deadline = step % 50 == 0 ? absl::InfinitePast() : Late();
      ASSERT_THAT(BeginWriting(&hold, step, AbortFlag(), deadline).status(), IsOk());
      for (auto& element : versions[step % 2]) element.store(step, std::memory_order_relaxed);
      applied.store(step, std::memory_order_release);
    }
  });
  int64_t copies = 0, last = -1;
  while (last < kSteps) {
    const absl::StatusOr<int64_t> step = HoldNewest(&hold, applied);
    ASSERT_THAT(step.status(), IsOk());
    std::array<int64_t, kNumel> copy;
    for (int i = 0; i < kNumel; ++i) copy[i] = versions[*step % 2][i].load();
    if (!Release(&hold, *step)) continue;
    ++copies;
    ASSERT_GE(*step, last);
    last = *step;
    for (const int64_t element : copy) ASSERT_EQ(element, *step);
  }
  writer.join();
  EXPECT_GT(copies, 0);
}

// One that holds nothing, as a process that maps the state: by the writer's word it knows which of
// its readings were overwritten meanwhile, and the writer never waits.
TEST(StateHoldTest, ReadingsThatTheWritersWordDoesNotVoidAreOfOneStepAndDelayNobody) {
  constexpr int kNumel = 256;
  constexpr int64_t kSteps = 20'000;
  StateHold hold;
  std::atomic<int64_t> applied{0};
  std::array<std::array<std::atomic<int64_t>, kNumel>, 2> versions = {};
  std::thread writer([&] {
    for (int64_t step = 1; step <= kSteps; ++step) {
      // As a guess announces it, or a step.
      if (step % 2 == 0) {
        ASSERT_TRUE(TryBeginWriting(&hold, step));
      }
      ASSERT_EQ(BeginWriting(&hold, step, AbortFlag(), absl::InfinitePast()).value(),
                WriteBegin::kAtOnce);
      for (auto& element : versions[step % 2]) element.store(step, std::memory_order_relaxed);
      applied.store(step, std::memory_order_release);
    }
  });
  int64_t last = -1;
  while (last < kSteps) {
    const int64_t step = applied.load(std::memory_order_acquire);
    std::array<int64_t, kNumel> copy;
    for (int i = 0; i < kNumel; ++i)
      copy[i] = versions[step % 2][i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (hold.writing.load(std::memory_order_relaxed) >= step + 2) continue;
    ASSERT_GE(step, last);
    last = step;
    for (const int64_t element : copy) ASSERT_EQ(element, step);
  }
  writer.join();
  EXPECT_EQ(hold.changes.sleepers.load(), 0u);
}

}  // namespace
}  // namespace tessera
