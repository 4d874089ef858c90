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
#include "client/cpp/session.h"
#include "tests/gpu/fault_device.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/toy_training.h"
#include "worker/device/cuda/cuda_rank_kernels.h"
#include "worker/executor/executor_program.h"

namespace tessera {
namespace gpu_check {
namespace {

// Another's, whose device breaks where the file is found before a reduction.
class FaultyKernels : public RankKernels {
 public:
  FaultyKernels(std::unique_ptr<RankKernels> kernels, std::string file)
      : kernels_(std::move(kernels)), file_(std::move(file)) {}

  void Reduce(absl::Span<const void* const> inputs, DType input_dtype, int64_t count, double scale,
              bool accumulate, host::SumOutput output, bool measure) override {
    if (unlink(file_.c_str()) == 0) Break();
    kernels_->Reduce(inputs, input_dtype, count, scale, accumulate, output, measure);
  }
  void Copy(void* to, const void* from, int64_t size_bytes) override {
    kernels_->Copy(to, from, size_bytes);
  }
  void Clear(void* at, int64_t size_bytes) override { kernels_->Clear(at, size_bytes); }
  void AdamStep(const host::AdamParams& params, const UpdateArrays& arrays) override {
    kernels_->AdamStep(params, arrays);
  }
  void SgdStep(const host::SgdParams& params, const UpdateArrays& arrays) override {
    kernels_->SgdStep(params, arrays);
  }
  void CastToHalf(ConstValues from, host::HalfOutput to) override {
    kernels_->CastToHalf(from, to);
  }
  void RoundToHalf(DType half, Values values) override { kernels_->RoundToHalf(half, values); }
  void Measure(ConstValues gradient) override { kernels_->Measure(gradient); }
  void AddToNormPart(ConstValues gradient, double p) override {
    kernels_->AddToNormPart(gradient, p);
  }
  void Record(SharedEvent* event) override { kernels_->Record(event); }
  void WaitForStream(void* stream) override { kernels_->WaitForStream(stream); }
  absl::Status Finish() override { return kernels_->Finish(); }
  absl::Status TakeStats(host::GradientStats* stats) override { return kernels_->TakeStats(stats); }
  absl::StatusOr<double> TakeNormPart() override { return kernels_->TakeNormPart(); }
  absl::StatusOr<Buffer> AllocateOnHost(int64_t size_bytes) override {
    return kernels_->AllocateOnHost(size_bytes);
  }

 private:
  // On the stream of the reduction, whose result then never counts.
  void Break() {
    auto* const own = dynamic_cast<CudaRankKernels*>(kernels_.get());
    auto* const stream = own == nullptr ? nullptr : static_cast<CudaStream*>(own->stream());
    const absl::Status broken = WriteToUnmapped(stream == nullptr ? nullptr : stream->handle());
    TESSERA_LOG(INFO, "the device is broken for a test: {}", broken.ToString());
  }

  const std::unique_ptr<RankKernels> kernels_;
  const std::string file_;
};

class FaultyDevice : public RankDevice {
 public:
  FaultyDevice(std::unique_ptr<RankDevice> device, std::string file)
      : device_(std::move(device)), file_(std::move(file)) {}

  absl::string_view name() const override { return device_->name(); }
  int number() const override { return device_->number(); }
  bool is_separate() const override { return device_->is_separate(); }
  absl::StatusOr<Buffer> MapRegion(int descriptor, int64_t size_bytes, bool writable) override {
    return device_->MapRegion(descriptor, size_bytes, writable);
  }
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes) override {
    return device_->Allocate(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<SharedEvent>> CreateSharedEvent() override {
    return device_->CreateSharedEvent();
  }
  absl::StatusOr<std::unique_ptr<SharedEvent>> OpenSharedEvent(
      const SharedEventName& name) override {
    return device_->OpenSharedEvent(name);
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }
  absl::StatusOr<std::unique_ptr<RankKernels>> CreateKernels(
      const KernelOptions& options) override {
    ASSIGN_OR_RETURN(std::unique_ptr<RankKernels> kernels, device_->CreateKernels(options));
    return std::make_unique<FaultyKernels>(std::move(kernels), file_);
  }

 private:
  const std::unique_ptr<RankDevice> device_;
  const std::string file_;
};

int RunExecutor(int argc, char** argv) {
  if (argc < 1) return 2;
  const std::string file = argv[0];
  ExecutorMachine machine;
  machine.make_device =
      [file](const DeviceName& name) -> absl::StatusOr<std::unique_ptr<RankDevice>> {
    ASSIGN_OR_RETURN(std::unique_ptr<RankDevice> device, MakeFaultDevice(name));
    if (!device->is_separate()) return device;
    return std::make_unique<FaultyDevice>(std::move(device), file);
  };
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
