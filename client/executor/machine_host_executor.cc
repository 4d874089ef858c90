#include "client/executor/machine_host_executor.h"

#include "client/executor/host_executor.h"
#include "worker/executor/this_machine.h"

namespace tessera {

HostExecutor RunExecutorOfThisMachineHere() { return RunExecutorHere(ThisMachine()); }

}  // namespace tessera
