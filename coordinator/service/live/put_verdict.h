// What became of a put that all workers were offered: from what each of them said.
//
//   kPending ──► kApplied   all of its ranks have it
//            ──► kOut       none of its ranks has it, or will vote for it any more
//            ──► kLost      it says nothing more
//
// A rank takes it only if all ranks of all workers voted for it, and what was decided is completed
// everywhere. So one worker that has it is enough to know that all will, and all workers that are
// out are enough to know that nobody does. Pure.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_

#include <vector>

#include "absl/status/status.h"

namespace tessera::coordinator {

enum class WorkerPut { kPending, kApplied, kOut, kLost };

enum class PutVerdict {
  kWait,      // Something is still to be said.
  kWithdraw,  // It cannot come about any more: tell those that are pending.
  kSet,       // All ranks have it, or will.
  kNotSet,    // None has it, ever.
  kUnknown,   // One or the other.
};

// `is_wanted`: nobody gave it up. `is_over`: those that are pending took too long after that.
PutVerdict Judge(const std::vector<WorkerPut>& workers, bool is_wanted, bool is_over);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_
