// The program of an executor: its command line, and RunRankExecutor.
#ifndef TESSERA_WORKER_EXECUTOR_EXECUTOR_PROGRAM_H_
#define TESSERA_WORKER_EXECUTOR_EXECUTOR_PROGRAM_H_

#include "worker/executor/executor_machine.h"

namespace tessera {

// What main returns.
int RunExecutorProgram(int argc, char** argv, ExecutorMachine machine);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EXECUTOR_PROGRAM_H_
