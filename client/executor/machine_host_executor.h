// The executor that tessera-executor is, in the trainer's process: see host_executor.h.
#ifndef TESSERA_CLIENT_EXECUTOR_MACHINE_HOST_EXECUTOR_H_
#define TESSERA_CLIENT_EXECUTOR_MACHINE_HOST_EXECUTOR_H_

#include "tessera/session_options.h"

namespace tessera {

// For SessionOptions::make_device = MakeMachineRankDevice, and for ranks in host memory.
HostExecutor RunExecutorOfThisMachineHere();

}  // namespace tessera

#endif  // TESSERA_CLIENT_EXECUTOR_MACHINE_HOST_EXECUTOR_H_
