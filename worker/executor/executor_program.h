// The program of an executor: its command line, and RunRankExecutor.
#ifndef TESSERA_WORKER_EXECUTOR_EXECUTOR_PROGRAM_H_
#define TESSERA_WORKER_EXECUTOR_EXECUTOR_PROGRAM_H_

#include "worker/device/rank_device.h"

namespace tessera {

// What main returns.
int RunExecutorProgram(int argc, char** argv, const MakeRankDevice& make_device);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EXECUTOR_PROGRAM_H_
