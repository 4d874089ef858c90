// The outcome of a put that was offered to all workers, from what each of them reported.
//
//   kPending ──► kApplied   all of its ranks have it
//            ──► kOut       none of its ranks has it, and none will vote for it
//            ──► kLost      it reports nothing more
//
// A rank takes the put only if all ranks of all workers voted for it, and a decision is completed
// everywhere. So if one worker has it, all will. If all workers are out, no rank ever has it. Pure.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_

#include <vector>

#include "absl/status/status.h"

namespace tessera::coordinator {

enum class WorkerPut { kPending, kApplied, kOut, kLost };

enum class PutVerdict {
  kWait,      // Reports are still missing.
  kWithdraw,  // It can no longer succeed: tell the pending workers.
  kSet,       // All ranks have it, or will.
  kNotSet,    // No rank has it, or ever will.
  kUnknown,   // Either kSet or kNotSet.
};

// `is_wanted`: not given up. `is_over`: the pending workers took too long after that.
PutVerdict Judge(const std::vector<WorkerPut>& workers, bool is_wanted, bool is_over);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_PUT_VERDICT_H_
