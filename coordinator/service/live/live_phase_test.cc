#include "coordinator/service/live/live_phase.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

constexpr LivePhase kHolding = LivePhase::kHolding, kCopying = LivePhase::kCopying,
                    kServing = LivePhase::kServing, kClosed = LivePhase::kClosed;

TEST(LivePhaseTest, EveryTransition) {
  struct Row {
    LivePhase from, all_held, all_copied, try_again, end;
  };
  const Row table[] = {
      {kHolding, kCopying, kHolding, kHolding, kClosed},
      {kCopying, kCopying, kServing, kHolding, kClosed},
      {kServing, kServing, kServing, kServing, kClosed},
      {kClosed, kClosed, kClosed, kClosed, kClosed},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(Name(row.from));
    EXPECT_EQ(Transition(row.from, LiveStep::kAllHeld), row.all_held);
    EXPECT_EQ(Transition(row.from, LiveStep::kAllCopied), row.all_copied);
    EXPECT_EQ(Transition(row.from, LiveStep::kTryAgain), row.try_again);
    EXPECT_EQ(Transition(row.from, LiveStep::kEnd), row.end);
  }
}

}  // namespace
}  // namespace tessera::coordinator
