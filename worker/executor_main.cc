// tessera-executor: runs the collectives and optimizer steps of one rank. Started by the worker.
#include "worker/executor/executor_program.h"
#include "worker/executor/this_machine.h"

int main(int argc, char** argv) {
  return tessera::RunExecutorProgram(argc, argv, tessera::ThisMachine());
}
