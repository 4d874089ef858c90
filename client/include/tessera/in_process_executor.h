// GPUs for trainers, and a rank's executor in its trainer's process instead of a process of its own:
//
//   options.make_device = MachineDevices();          a trainer of a rank on a GPU
//   options.host_executor = InProcessExecutor();     the executor is a thread of the session
//   auto session = Session::Open(options);
//
// An executor in the trainer's process is for ranks on a GPU without MPS: kernels of two processes
// take turns on it, so that a collective runs concurrently with the training code's kernels only if
// both are of one process. Also for ranks on a GPU whose driver cannot pass memory between
// processes: these have no other way. The shards stay in the worker. What it costs: SIGKILL of the
// trainer ends both; the executor's threads share the process's CPUs and memory with the training
// code's; a permanent error of the GPU affects both; a save in the background ends with the session.
#ifndef TESSERA_IN_PROCESS_EXECUTOR_H_
#define TESSERA_IN_PROCESS_EXECUTOR_H_

#include "tessera/session_options.h"

namespace tessera {

// For SessionOptions::make_device: the CPU of this machine, and its GPUs through the driver.
DeviceMaker MachineDevices();

// For SessionOptions::host_executor, with MachineDevices() or for ranks in host memory: what
// tessera-executor does.
HostExecutor InProcessExecutor();

}  // namespace tessera

#endif  // TESSERA_IN_PROCESS_EXECUTOR_H_
