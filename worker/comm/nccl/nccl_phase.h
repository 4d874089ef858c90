// What can be asked of an NCCL communicator, and which call that means. The library itself hangs or
// answers ncclInvalidArgument where it is asked twice; this is idempotent.
//
//   kJoining ──joined──► kReady ──revoke──► kRevoked
//      │                   │                   │
//      └──abort, revoke──► └──abort──► kAborted ◄──abort── ┘      aborting that hangs ──► kStuck
//
// Pure; thread-safe.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_PHASE_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_PHASE_H_

#include <cstdint>

namespace tessera {

enum class NcclPhase : uint8_t { kJoining, kReady, kRevoked, kAborted, kStuck };
enum class NcclEvent : uint8_t { kJoined, kRevoke, kAbort, kAbortHung };
enum class NcclCall : uint8_t { kNone, kRevoke, kAbort };

struct NcclStep {
  NcclPhase next;
  NcclCall call;

  friend bool operator==(const NcclStep& a, const NcclStep& b) {
    return a.next == b.next && a.call == b.call;
  }
};

NcclStep Next(NcclPhase phase, NcclEvent event);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_PHASE_H_
