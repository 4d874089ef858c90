// Measures what gathering takes from a product of matrices on this machine's GPU, and writes it as
// JSON: part of what DIR/gpu-check runs.
//
// Exit status: 0 all was measured, 1 it was not, or no device, 77 no cuBLAS.
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "tests/gpu/machine_libraries.h"
#include "tests/gpu/overlap_bench.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr int kExitNoCublas = 77;  // kExitNoPeer of check_report.h.

int Fail(const absl::Status& status) {
  std::cerr << status << "\n";
  return 1;
}

int Run(int size, const std::string& json) {
  const absl::StatusOr<testing_support::GpuUnderTest> gpu = testing_support::FindGpuUnderTest();
  if (!gpu.ok()) return Fail(gpu.status());
  const absl::StatusOr<CudaApi*> api = LoadCudaApi();
  if (!api.ok()) return Fail(api.status());
  const absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(*api, {});
  if (!device.ok()) return Fail(device.status());
  const absl::StatusOr<std::unique_ptr<Gemm>> gemm = LoadCublasGemm(device->get(), size);
  if (absl::IsNotFound(gemm.status())) {
    std::cerr << gemm.status().message() << "\n";
    return kExitNoCublas;
  }
  if (!gemm.ok()) return Fail(gemm.status());
  const absl::StatusOr<std::vector<BenchRow>> rows =
      BenchOverlap(*gpu, gemm->get(), LoadCuptiCounter(), OverlapOptions());
  if (!rows.ok()) return Fail(rows.status());
  std::ofstream file(json);
  file << RowsToJson(*rows) << "\n";
  return file.flush() ? 0 : Fail(absl::InternalError("cannot write " + json));
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera

int main(int argc, char** argv) {
  int size = 8192;
  std::string json;
  CLI::App app("Measures a product of matrices beside gathers on the same GPU", "overlap_bench");
  app.add_option("--json", json, "Where the rows go")->required();
  app.add_option("--size", size, "Rows and columns of each matrix")
      ->check(tessera::WholeNumber(16, 1 << 15))
      ->capture_default_str();
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  return tessera::gpu_check::Run(size, json);
}
