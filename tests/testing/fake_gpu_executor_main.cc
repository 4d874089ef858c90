// tessera-executor on a GPU that is none: see fake_gpu.h.
#include "tests/testing/fake_gpu.h"
#include "worker/executor/executor_program.h"

int main(int argc, char** argv) {
  return tessera::RunExecutorProgram(argc, argv, {tessera::testing_support::MakeFakeGpuDevice});
}
