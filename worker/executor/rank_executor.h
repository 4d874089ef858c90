// A rank's executor: obeys its worker, and runs an engine in each epoch.
//
//   worker ── Setup ──► map memory ── Ready ──►
//          ── Start(e) ──► engine of epoch e, on a thread of its own ── Started / Failure ──►
//          ── Abort(e) ──► that engine stops ── Quiesced ──►
//          socket closed ──► end
//          error of the device, a call that uses it and never comes back ── Failure ──► end:
//                                             the next executor has a device that works
//
// What must survive an executor is in regions that the worker owns, so it may be killed at any
// moment and another takes over.
#ifndef TESSERA_WORKER_EXECUTOR_RANK_EXECUTOR_H_
#define TESSERA_WORKER_EXECUTOR_RANK_EXECUTOR_H_

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "worker/executor/executor_machine.h"

namespace tessera {

// Runs until the worker stops it or closes the socket. Blocks; one call a socket.
// Errors: what made the setup impossible; those of the device. The end of the worker is OK.
absl::Status RunRankExecutor(UniqueFd socket, const ExecutorMachine& machine);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_RANK_EXECUTOR_H_
