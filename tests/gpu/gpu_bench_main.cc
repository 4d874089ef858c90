// Measures a GPU and writes what came of it as JSON: part of what DIR/gpu-check runs.
//
// Exit status: 0 all was measured, 1 something was not: the rows say what, or no device was found.
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "tests/gpu/device_kernels.h"
#include "tests/gpu/graph_bench.h"

namespace tessera {
namespace gpu_check {
namespace {

absl::StatusOr<std::vector<BenchRow>> Bench(CudaDevice* device, const BenchOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GpuKernels> kernels,
                   GpuKernels::Create(device, options.array_bytes / 4));
  DeviceKernels measured(kernels.get());
  ASSIGN_OR_RETURN(std::vector<BenchRow> rows, BenchGpu(device, &measured, options));
  const absl::StatusOr<std::vector<BenchRow>> graph = BenchGraph(device, &measured, {});
  if (graph.ok()) {
    rows.insert(rows.end(), graph->begin(), graph->end());
  } else {
    rows.emplace_back();
    rows.back().name = "launch of a step's halves as CUDA graphs";
    rows.back().error = graph.status().ToString();
  }
  return rows;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> FindDevice() {
  ASSIGN_OR_RETURN(CudaApi* const api, LoadCudaApi());
  return CudaDevice::Create(api, {});
}

int Run(const BenchOptions& options, const std::string& json) {
  const absl::StatusOr<std::unique_ptr<CudaDevice>> device = FindDevice();
  if (!device.ok()) {
    std::cerr << "no device: " << device.status() << "\n";
    return 1;
  }
  const absl::StatusOr<std::vector<BenchRow>> rows = Bench(device->get(), options);
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
    std::cerr << row.name << ": " << row.error << "\n";
    status = 1;
  }
  return status;
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::gpu_check::BenchOptions options;
  int64_t mebibytes = options.array_bytes >> 20;
  std::string json;
  CLI::App app("Measures a GPU's memory and Tessera's kernels on it", "gpu_bench");
  app.add_option("--json", json, "Where the rows go")->required();
  app.add_option("--rounds", options.rounds, "Interleaved rounds")
      ->check(tessera::WholeNumber(1, 1000))
      ->capture_default_str();
  app.add_option("--mebibytes", mebibytes, "Of each array, where there is room")
      ->check(tessera::WholeNumber(1, 1 << 14))
      ->capture_default_str();
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  options.array_bytes = mebibytes << 20;
  return tessera::gpu_check::Run(options, json);
}
