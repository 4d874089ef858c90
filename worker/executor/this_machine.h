// The machine as tessera-executor finds it: its CPU, its GPUs, its NCCL.
#ifndef TESSERA_WORKER_EXECUTOR_THIS_MACHINE_H_
#define TESSERA_WORKER_EXECUTOR_THIS_MACHINE_H_

#include "worker/executor/executor_machine.h"

namespace tessera {

ExecutorMachine ThisMachine();

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_THIS_MACHINE_H_
