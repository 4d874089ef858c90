// tessera-executor on an in-process fake GPU: see fake_gpu.h.
#include "tests/testing/fake_gpu.h"
#include "worker/executor/executor_program.h"

int main(int argc, char** argv) {
  return tessera::RunExecutorProgram(argc, argv, {tessera::testing_support::MakeFakeGpuDevice});
}
