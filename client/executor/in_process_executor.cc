#include "tessera/in_process_executor.h"

#include "client/executor/host_executor.h"
#include "worker/executor/machine_devices.h"
#include "worker/executor/this_machine.h"

namespace tessera {

DeviceMaker MachineDevices() { return MakeMachineRankDevice; }

HostExecutor InProcessExecutor() { return RunExecutorHere(ThisMachine()); }

}  // namespace tessera
