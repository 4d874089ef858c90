#include "coordinator/core/hand_over_state.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

TEST(HandOverTest, TransitionTableIsAsDrawn) {
  using Phase = HandOverPhase;
  using Step = HandOverStep;
  const Phase phases[] = {Phase::kOffered, Phase::kAccepted, Phase::kDone, Phase::kCancelled};
  const Step steps[] = {Step::kAccept, Step::kTakerGone, Step::kFinish, Step::kCancel};
  const std::optional<Phase> none;
  const std::optional<Phase> table[4][4] = {
      {Phase::kAccepted, none, none, Phase::kCancelled},
      {none, Phase::kOffered, Phase::kDone, none},
      {none, none, none, none},
      {none, none, none, none},
  };
  for (int phase = 0; phase < 4; ++phase) {
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(NextPhase(phases[phase], steps[step]), table[phase][step])
          << Name(phases[phase]) << " on step " << step;
    }
  }
}

}  // namespace
}  // namespace tessera::coordinator
