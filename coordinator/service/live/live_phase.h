// The phase of one read of a job's state: one enum, one transition function.
//
//              all held           all copied             end
//   kHolding ───────────► kCopying ─────────► kServing ───────► kClosed
//      ▲                     │
//      └───── try again ◄────┘
//
// The read can end in any phase. A failed attempt starts over, unless something was served already.
// Training can wait for the read only in kHolding and kCopying.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PHASE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PHASE_H_

#include "absl/strings/string_view.h"

namespace tessera::coordinator {

enum class LivePhase { kHolding, kCopying, kServing, kClosed };
enum class LiveStep { kAllHeld, kAllCopied, kTryAgain, kEnd };

absl::string_view Name(LivePhase phase);

// The phase after `step`; the same phase where the step cannot happen there.
LivePhase Transition(LivePhase phase, LiveStep step);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PHASE_H_
