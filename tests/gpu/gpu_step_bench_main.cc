// Measures steps of jobs on this machine's GPU and writes what came of it as JSON: part of what
// DIR/gpu-check runs.
//
// Exit status: 0 all was measured that the machine has the libraries for, 1 it was not, or there is
// no device.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "tests/gpu/gpu_step_bench.h"
#include "tests/gpu/launch_latency.h"
#include "tests/gpu/machine_libraries.h"
#include "tests/gpu/rows_file.h"
#include "tests/gpu/step_overlap.h"
#include "worker/executor/machine_devices.h"

namespace tessera {
namespace gpu_check {
namespace {

struct MachineGemm {
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Gemm> gemm;  // Before its device goes.
};

absl::StatusOr<MachineGemm> LoadGemm(int size) {
  MachineGemm machine;
  ASSIGN_OR_RETURN(CudaApi* const api, LoadCudaApi());
  ASSIGN_OR_RETURN(machine.device, CudaDevice::Create(api, {}));
  ASSIGN_OR_RETURN(machine.gemm, LoadCublasGemm(machine.device.get(), size));
  return machine;
}

absl::Status BenchOverlapOfSteps(const testing_support::GpuUnderTest& gpu,
                                 const StepOverlapOptions& options, RowsFile* file) {
  absl::StatusOr<MachineGemm> machine = absl::UnknownError("not asked for");
  const auto load_gemm = [&]() -> absl::StatusOr<Gemm*> {
    machine = LoadGemm(options.product_size);
    if (!machine.ok()) return machine.status();
    return machine->gemm.get();
  };
  const auto add = [file](const std::vector<BenchRow>& rows) { return file->Add(rows); };
  return BenchStepOverlap(gpu, options, load_gemm, add);
}

// Each part's rows are written before the next one begins, and what the machine's own libraries do
// to this process comes last.
absl::Status Bench(const StepOverlapOptions& options, RowsFile* file) {
  ASSIGN_OR_RETURN(const testing_support::GpuUnderTest gpu, testing_support::FindGpuUnderTest());
  if (gpu.in_process()) {
    return absl::FailedPreconditionError("processes cannot share the GPU: " +
                                         gpu.memory->why_not_shared());
  }
  ASSIGN_OR_RETURN(const std::vector<BenchRow> steps, BenchSteps(gpu, options.steps));
  RETURN_IF_ERROR(file->Add(steps));
  // What fails from here on is a row that says so, and takes no other with it.
  LatencyOptions latency;
  latency.program = std::filesystem::read_symlink("/proc/self/exe").string();
  const absl::StatusOr<std::vector<BenchRow>> launch = BenchLaunchLatency(gpu, latency);
  RETURN_IF_ERROR(launch.ok()
                      ? file->Add(*launch)
                      : file->AddError("reduction to its kernel's launch", launch.status()));
  const absl::Status overlap = BenchOverlapOfSteps(gpu, options, file);
  if (overlap.ok()) return absl::OkStatus();
  return file->AddError("hidden share of an executor's work", overlap);
}

int Run(const StepOverlapOptions& options, const std::string& json) {
  RowsFile file(json);
  const absl::Status benched = Bench(options, &file);
  if (!benched.ok()) {
    std::cerr << benched << "\n";
    return 1;
  }
  int status = 0;
  for (const BenchRow& row : file.rows()) {
    if (row.measured()) continue;
    std::cerr << row.name << ": " << row.error << row.absent << "\n";
    if (!row.error.empty()) status = 1;
  }
  return status;
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera

int main(int argc, char** argv) {
  if (const auto ended =
          tessera::gpu_check::RunLatencyExecutor(argc, argv, tessera::MakeMachineRankDevice)) {
    return *ended;
  }
  tessera::gpu_check::StepOverlapOptions options;
  tessera::gpu_check::StepBenchOptions& steps = options.steps;
  std::string json;
  CLI::App app("Measures steps of jobs on a GPU beside the same work without a job",
               "gpu_step_bench");
  app.add_option("--json", json, "Where the rows go")->required();
  app.add_option("--rounds", steps.rounds, "Interleaved rounds")
      ->check(tessera::WholeNumber(1, 1000))
      ->capture_default_str();
  app.add_option("--units", steps.num_units, "Of the model, all alike")
      ->check(tessera::WholeNumber(1, 1000))
      ->capture_default_str();
  app.add_option("--unit-elements", steps.unit_numel, "Of each unit")
      ->check(tessera::WholeNumber(1, int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--passes", steps.forward_passes, "Over a unit's parameters in its forward")
      ->check(tessera::WholeNumber(1, 1000))
      ->capture_default_str();
  app.add_option("--product-size", options.product_size, "Rows and columns of matrices in products")
      ->check(tessera::WholeNumber(16, 1 << 15))
      ->capture_default_str();
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  return tessera::gpu_check::Run(options, json);
}
