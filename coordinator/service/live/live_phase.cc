#include "coordinator/service/live/live_phase.h"

namespace tessera::coordinator {

absl::string_view Name(LivePhase phase) {
  switch (phase) {
    case LivePhase::kHolding:
      return "holding";
    case LivePhase::kCopying:
      return "copying";
    case LivePhase::kServing:
      return "serving";
    case LivePhase::kClosed:
      return "closed";
  }
  return "";
}

LivePhase Transition(LivePhase phase, LiveStep step) {
  if (step == LiveStep::kEnd) return LivePhase::kClosed;
  switch (phase) {
    case LivePhase::kHolding:
      return step == LiveStep::kAllHeld ? LivePhase::kCopying : phase;
    case LivePhase::kCopying:
      if (step == LiveStep::kTryAgain) return LivePhase::kHolding;
      return step == LiveStep::kAllCopied ? LivePhase::kServing : phase;
    case LivePhase::kServing:
    case LivePhase::kClosed:
      break;
  }
  return phase;
}

}  // namespace tessera::coordinator
