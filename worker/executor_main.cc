// tessera-executor: runs the collectives and optimizer steps of one rank. Started by the worker.
#include "worker/comm/nccl/nccl_direct.h"
#include "worker/executor/executor_program.h"
#include "worker/executor/machine_devices.h"

int main(int argc, char** argv) {
  return tessera::RunExecutorProgram(argc, argv,
                                     {tessera::MakeMachineRankDevice, tessera::MakeMachineNccl});
}
