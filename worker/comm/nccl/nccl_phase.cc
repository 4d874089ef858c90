#include "worker/comm/nccl/nccl_phase.h"

namespace tessera {

NcclStep Next(NcclPhase phase, NcclEvent event) {
  const NcclStep stay = {phase, NcclCall::kNone};
  // A call hangs inside the library: no other call may follow.
  if (phase == NcclPhase::kStuck) return stay;
  // Before the check for kAborted, since the abort itself may be what hangs.
  if (event == NcclEvent::kAbortHung) return {NcclPhase::kStuck, NcclCall::kNone};
  if (phase == NcclPhase::kAborted) return stay;
  switch (event) {
    case NcclEvent::kJoined:
      // A join that ends after an abort leaves the communicator aborted.
      return phase == NcclPhase::kJoining ? NcclStep{NcclPhase::kReady, NcclCall::kNone} : stay;
    case NcclEvent::kRevoke:
      if (phase == NcclPhase::kReady) return {NcclPhase::kRevoked, NcclCall::kRevoke};
      // What has not joined cannot be revoked, and holds nothing worth keeping.
      return phase == NcclPhase::kJoining ? NcclStep{NcclPhase::kAborted, NcclCall::kAbort} : stay;
    case NcclEvent::kAbort:
    case NcclEvent::kAbortHung:
      return {NcclPhase::kAborted, NcclCall::kAbort};
  }
  return stay;
}

}  // namespace tessera
