#include "tests/gpu/fault_programs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tessera/session.h"
#include "tests/gpu/fault_device.h"
#include "tests/gpu/wrapped_device.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"
#include "worker/device/cuda/cuda_rank_kernels.h"
#include "worker/executor/executor_program.h"

namespace tessera {
namespace gpu_check {
namespace {

// Another's, whose device breaks where the file is found before a reduction.
class FaultyKernels : public WrappedKernels {
 public:
  FaultyKernels(std::unique_ptr<RankKernels> own, std::string file)
      : WrappedKernels(std::move(own)), file_(std::move(file)) {}

  void Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count, double scale,
              bool accumulate, host::SumOutput output, bool measure) override {
    if (unlink(file_.c_str()) == 0) Break();
    own()->Reduce(inputs, input_dtype, count, scale, accumulate, output, measure);
  }

 private:
  // On the stream of the reduction, whose result then never counts.
  void Break() {
    auto* const kernels = dynamic_cast<CudaRankKernels*>(own());
    auto* const stream = kernels == nullptr ? nullptr : static_cast<CudaStream*>(kernels->stream());
    const absl::Status broken = WriteToUnmapped(stream == nullptr ? nullptr : stream->handle());
    TESSERA_LOG(INFO, "the device is broken for a test: {}", broken.ToString());
  }

  const std::string file_;
};

int RunExecutor(int argc, char** argv) {
  if (argc < 1) return 2;
  const std::string file = argv[0];
  ExecutorMachine machine;
  machine.make_device = WrapDevices(MakeFaultDevice, [file](std::unique_ptr<RankKernels> own) {
    return std::make_unique<FaultyKernels>(std::move(own), file);
  });
  return RunExecutorProgram(argc, argv, machine);
}

absl::Status Train(const SessionOptions& options, int64_t steps, int64_t pause_at,
                   const std::string& resume, const std::string& save) {
  ASSIGN_OR_RETURN(const auto device, MakeFaultDevice(0));
  ASSIGN_OR_RETURN(const auto session, Session::Open(options));
  while (session->next_step() <= steps) {
    const int64_t step = session->next_step();
    if (step == pause_at) {
      printf("at step %ld\n", static_cast<long>(step));
      fflush(stdout);
      const UniqueFd opened(open(resume.c_str(), O_RDONLY | O_CLOEXEC));
    }
    RETURN_IF_ERROR(testing_support::TrainToyOn(session.get(), device.get(), step));
  }
  absl::Status status = session->Save(save);
  while (absl::IsAborted(status)) {
    RETURN_IF_ERROR(session->Recover());
    status = session->Save(save);
  }
  return status;
}

int RunTrainer(int argc, char** argv) {
  SessionOptions options;
  int64_t steps = 1, pause_at = 0;
  std::string save, resume;
  CLI::App app;
  app.add_option("--coordinator", options.coordinator_address)->required();
  app.add_option("--worker", options.worker_address)->required();
  app.add_option("--rank", options.rank)->required();
  app.add_option("--world-size", options.config.world_size)->required();
  app.add_option("--steps", steps)->required();
  app.add_option("--save", save, "the model, in the end")->required();
  app.add_option("--pause-at", pause_at, "says \"at step N\" before it, and then opens the pipe");
  app.add_option("--resume", resume, "a named pipe, which opens once somebody writes to it");
  app.add_flag("--replace", options.wait_if_attached);
  CLI11_PARSE(app, argc, argv);
  options.job_id = "toy";
  options.model = testing_support::ToyModel(3);
  options.config.max_gradient_norm = 0.5;
  options.make_device = MakeFaultDevice;
  const absl::Status status = Train(options, steps, pause_at, resume, save);
  if (status.ok()) return 0;
  fprintf(stderr, "trainer %d: %s\n", options.rank, status.ToString().c_str());
  return 1;
}

}  // namespace

std::optional<int> RunFaultProgram(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "--as-executor") return RunExecutor(argc - 2, argv + 2);
  if (mode == "--as-trainer") return RunTrainer(argc - 1, argv + 1);
  return std::nullopt;
}

}  // namespace gpu_check
}  // namespace tessera
