// Runs a rank's executor in its trainer's process, instead of a process of its own:
//
//   options.host_executor = RunExecutorHere(machine);     or RunExecutorOfThisMachineHere()
//   auto session = Session::Open(options);                the executor now runs on a thread
//
// For ranks on a GPU without MPS: kernels of two processes take turns on it, so that a collective
// runs concurrently with the training code's kernels only if both are of one process. Also for
// ranks on a GPU whose driver cannot pass memory between processes: these have no other way. The
// shards stay in the worker. What it costs: SIGKILL of the trainer ends both; the executor's
// threads share the process's CPUs and memory with the training code's; a permanent error of the
// GPU affects both; a save in the background ends with the session.
#ifndef TESSERA_CLIENT_EXECUTOR_HOST_EXECUTOR_H_
#define TESSERA_CLIENT_EXECUTOR_HOST_EXECUTOR_H_

#include "tessera/session_options.h"
#include "worker/executor/executor_machine.h"

namespace tessera {

// `machine.make_device` gives what the session's make_device does. What the executor returns is
// RunRankExecutor's.
HostExecutor RunExecutorHere(ExecutorMachine machine);

}  // namespace tessera

#endif  // TESSERA_CLIENT_EXECUTOR_HOST_EXECUTOR_H_
