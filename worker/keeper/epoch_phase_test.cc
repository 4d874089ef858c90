#include "worker/keeper/epoch_phase.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(EpochPhaseTest, TableOfAllTransitions) {
  const EpochPhase N = EpochPhase::kNone, P = EpochPhase::kPreparing, R = EpochPhase::kPrepared,
                   U = EpochPhase::kRunning, F = EpochPhase::kFailed;
  const struct {
    EpochEvent event;
    EpochPhase from_none, from_preparing, from_prepared, from_running, from_failed;
  } kTable[] = {
      {EpochEvent::kPrepare, P, P, P, P, P}, {EpochEvent::kAllQuiet, N, R, R, U, F},
      {EpochEvent::kStart, N, P, U, U, F},   {EpochEvent::kFailure, N, P, F, F, F},
      {EpochEvent::kGiveUp, N, F, F, F, F},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(Transition(N, row.event), row.from_none);
    EXPECT_EQ(Transition(P, row.event), row.from_preparing);
    EXPECT_EQ(Transition(R, row.event), row.from_prepared);
    EXPECT_EQ(Transition(U, row.event), row.from_running);
    EXPECT_EQ(Transition(F, row.event), row.from_failed);
  }
}

}  // namespace
}  // namespace tessera
