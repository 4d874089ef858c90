// Measures steps of jobs on this machine's GPU and writes what came of it as JSON: part of what
// DIR/gpu-check runs.
//
// Exit status: 0 all was measured, 1 it was not, or there is no device.
#include <fstream>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "tests/gpu/gpu_step_bench.h"

namespace tessera {
namespace gpu_check {
namespace {

int Run(const StepBenchOptions& options, const std::string& json) {
  const absl::StatusOr<testing_support::GpuUnderTest> gpu = testing_support::FindGpuUnderTest();
  const absl::StatusOr<std::vector<BenchRow>> rows =
      gpu.ok() ? BenchSteps(*gpu, options) : gpu.status();
  if (!rows.ok()) {
    std::cerr << rows.status() << "\n";
    return 1;
  }
  std::ofstream file(json);
  file << RowsToJson(*rows) << "\n";
  if (file.flush()) return 0;
  std::cerr << "cannot write " << json << "\n";
  return 1;
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::gpu_check::StepBenchOptions options;
  std::string json;
  CLI::App app("Measures steps of jobs on a GPU beside the same work without a job",
               "gpu_step_bench");
  app.add_option("--json", json, "Where the rows go")->required();
  app.add_option("--rounds", options.rounds, "Interleaved rounds")
      ->check(tessera::WholeNumber(1, 1000))
      ->capture_default_str();
  app.add_option("--units", options.num_units, "Of the model, all alike")
      ->check(tessera::WholeNumber(1, 1000))
      ->capture_default_str();
  app.add_option("--unit-elements", options.unit_numel, "Of each unit")
      ->check(tessera::WholeNumber(1, int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--passes", options.forward_passes, "Over a unit's parameters in its forward")
      ->check(tessera::WholeNumber(1, 1000))
      ->capture_default_str();
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  return tessera::gpu_check::Run(options, json);
}
