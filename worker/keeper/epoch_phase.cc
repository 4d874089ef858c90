#include "worker/keeper/epoch_phase.h"

namespace tessera {

absl::string_view Name(EpochPhase phase) {
  switch (phase) {
    case EpochPhase::kNone:
      return "without an epoch";
    case EpochPhase::kPreparing:
      return "preparing an epoch";
    case EpochPhase::kPrepared:
      return "prepared";
    case EpochPhase::kRunning:
      return "running";
    case EpochPhase::kFailed:
      return "waiting for a new epoch";
  }
  return "?";
}

EpochPhase Transition(EpochPhase phase, EpochEvent event) {
  switch (event) {
    case EpochEvent::kPrepare:
      return EpochPhase::kPreparing;
    case EpochEvent::kAllQuiet:
      // Of an epoch that was given up meanwhile, quiet ranks say nothing.
      return phase == EpochPhase::kPreparing ? EpochPhase::kPrepared : phase;
    case EpochEvent::kStart:
      // A start that is late must not revive an epoch that has failed here.
      return phase == EpochPhase::kPrepared ? EpochPhase::kRunning : phase;
    case EpochEvent::kFailure:
      // While preparing, a rank that fails again is simply not quiet yet.
      return phase == EpochPhase::kPrepared || phase == EpochPhase::kRunning ? EpochPhase::kFailed
                                                                             : phase;
    case EpochEvent::kGiveUp:
      return phase == EpochPhase::kPreparing ? EpochPhase::kFailed
                                             : Transition(phase, EpochEvent::kFailure);
  }
  return phase;
}

}  // namespace tessera
