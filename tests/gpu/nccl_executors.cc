#include "tests/gpu/nccl_executors.h"

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "gtest/gtest.h"
#include "worker/comm/nccl/nccl_shared_gpu.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace gpu_check {

absl::Status NcclExecutors::SetUp(const testing_support::GpuUnderTest* gpu) {
  gpu_ = gpu;
  if (!gpu->nccl.ok()) {
    if (gpu->nccl_of_threads == nullptr) return absl::UnimplementedError(gpu->nccl.message());
    testing::internal::CaptureStdout();
    return absl::OkStatus();
  }
  // NCCL refuses a GPU that two ranks have, unless it is told. The log is there to be read.
  program_ = testing::TempDir() + "/executor-that-shares-its-gpu";
  log_ = program_ + ".log";
  std::ofstream(log_).flush();
  std::ofstream script(program_);
  script << "#!/bin/sh\n";
  for (const auto& [name, value] : SharedGpuEnvironment("tessera-$$", gpu->nccl_version))
    script << "export " << name << "=" << value << "\n";
  script << "exec '" << gpu->executor_binary << "' \"$@\" 2>>'" << log_ << "'\n";
  if (script.flush() && chmod(program_.c_str(), 0755) == 0) return absl::OkStatus();
  return absl::UnavailableError("cannot write " + program_);
}

void NcclExecutors::ChooseFor(LocalCluster::Options* options) const {
  options->executor_binary = program_;
  if (!program_.empty()) return;
  if (options->machine == nullptr) options->machine = std::make_shared<ExecutorMachine>();
  options->machine->make_direct = gpu_->nccl_of_threads;
}

std::string NcclExecutors::TakeLog() {
  if (program_.empty()) return testing::internal::GetCapturedStdout();
  std::stringstream log;
  log << std::ifstream(log_).rdbuf();
  return log.str();
}

}  // namespace gpu_check
}  // namespace tessera
