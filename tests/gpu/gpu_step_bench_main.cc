// Measures steps of jobs on this machine's GPU and writes what came of it as JSON: part of what
// DIR/gpu-check runs.
//
// Exit status: 0 all was measured that the machine has the libraries for, 1 it was not, or there is
// no device.
#include <filesystem>
#include <fstream>
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

absl::StatusOr<std::vector<BenchRow>> BenchOverlapOfSteps(const testing_support::GpuUnderTest& gpu,
                                                          const StepOverlapOptions& options) {
  const absl::StatusOr<MachineGemm> machine = LoadGemm(options.product_size);
  absl::StatusOr<Gemm*> gemm = machine.status();
  if (machine.ok()) gemm = machine->gemm.get();
  return BenchStepOverlap(gpu, options, gemm);
}

absl::StatusOr<std::vector<BenchRow>> Bench(const StepOverlapOptions& options) {
  ASSIGN_OR_RETURN(const testing_support::GpuUnderTest gpu, testing_support::FindGpuUnderTest());
  if (gpu.in_process()) {
    return absl::FailedPreconditionError("processes cannot share the GPU: " +
                                         gpu.memory->why_not_shared());
  }
  ASSIGN_OR_RETURN(std::vector<BenchRow> rows, BenchSteps(gpu, options.steps));
  // What fails here is a row that says so, and takes no other with it.
  const auto add = [&rows](const std::string& what,
                           const absl::StatusOr<std::vector<BenchRow>>& more) {
    if (more.ok()) {
      rows.insert(rows.end(), more->begin(), more->end());
      return;
    }
    rows.emplace_back();
    rows.back().name = what;
    rows.back().error = more.status().ToString();
  };
  add("hidden share of an executor's work", BenchOverlapOfSteps(gpu, options));
  LatencyOptions latency;
  latency.program = std::filesystem::read_symlink("/proc/self/exe").string();
  add("reduction to its kernel's launch", BenchLaunchLatency(gpu, latency));
  return rows;
}

int Run(const StepOverlapOptions& options, const std::string& json) {
  const absl::StatusOr<std::vector<BenchRow>> rows = Bench(options);
  if (!rows.ok()) {
    std::cerr << rows.status() << "\n";
    return 1;
  }
  std::ofstream file(json);
  file << RowsToJson(*rows) << "\n";
  if (!file.flush()) {
    std::cerr << "cannot write " << json << "\n";
    return 1;
  }
  int status = 0;
  for (const BenchRow& row : *rows) {
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
