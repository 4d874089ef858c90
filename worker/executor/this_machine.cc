#include "worker/executor/this_machine.h"

#include "worker/comm/nccl/nccl_direct.h"
#include "worker/executor/machine_devices.h"

namespace tessera {

ExecutorMachine ThisMachine() {
  ExecutorMachine machine;
  machine.make_device = MakeMachineRankDevice;
  machine.make_direct = MakeMachineNccl;
  return machine;
}

}  // namespace tessera
