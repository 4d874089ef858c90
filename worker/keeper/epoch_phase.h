// Where a job stands on one worker: one enum, one transition function.
//
//             prepare          all quiet           start
//   kNone ──────────► kPreparing ───► kPrepared ───────► kRunning
//                         ▲               │ failure          │ failure
//                         │               ▼                  ▼
//                         └── prepare ── kFailed ◄───────────┘       (prepare is legal everywhere)
//
// While preparing, a failure changes nothing: the rank is not quiet yet, and its next executor may
// be. Giving up, since no executor becomes ready, fails that epoch too.
#ifndef TESSERA_WORKER_KEEPER_EPOCH_PHASE_H_
#define TESSERA_WORKER_KEEPER_EPOCH_PHASE_H_

#include "absl/strings/string_view.h"

namespace tessera {

enum class EpochPhase { kNone, kPreparing, kPrepared, kRunning, kFailed };
enum class EpochEvent { kPrepare, kAllQuiet, kStart, kFailure, kGiveUp };

absl::string_view Name(EpochPhase phase);

// The phase after `event`; the same phase where the event says nothing new there.
EpochPhase Transition(EpochPhase phase, EpochEvent event);

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_EPOCH_PHASE_H_
