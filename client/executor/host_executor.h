// Runs a rank's executor in its trainer's process, instead of a process of its own:
//
//   options.host_executor = RunExecutorHere(machine);
//   auto session = Session::Open(options);                the executor now runs on a thread
//
// With a machine that the caller chooses; InProcessExecutor() (tessera/in_process_executor.h) takes
// this one, and says what it is for and what it costs.
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
