// What DIR/gpu-check runs: see tools/gpu-check.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "tests/gpu/check_report.h"
#include "tests/gpu/check_tools.h"
#include "tests/gpu/run_check.h"
#include "tests/gpu/run_program.h"
#include "worker/device/cuda/cuda_versions.h"

namespace {

namespace gpu_check = tessera::gpu_check;

void Interrupted(int signal) {
  gpu_check::KillRunningProgram();
  gpu_check::KillPrivateMps();
  _exit(128 + signal);
}

gpu_check::GpuFacts Look() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string driver;
  std::getline(file, driver);
  // As the driver looks for it in the programs that this one starts.
  const char* const pipe = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const tessera::MpsFinding mps =
      tessera::JudgeMps(tessera::ProbeMps(pipe == nullptr ? tessera::kDefaultMpsFolder : pipe));
  return gpu_check::FindGpu(tessera::LoadCudaApi(), tessera::LoadNcclApi(),
                            tessera::QueryCudaVersions().toolkit, driver, mps);
}

std::vector<std::string> ToolFolders() {
  const char* const path = std::getenv("PATH");
  std::vector<std::string> folders =
      absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty());
  folders.push_back("/usr/local/cuda/bin");
  return folders;
}

}  // namespace

int main(int argc, char** argv) {
  gpu_check::CheckOptions options;
  options.folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  options.out = "gpu-check.json";
  options.tool_folders = ToolFolders();
  CLI::App app(
      "Runs on this machine's GPU all tests that need one, and measures it. Writes one JSON file, "
      "with a log beside it, and prints one table.\n"
      "Exit status: 0 all ran and passed, 1 something failed or ran nothing, 2 there is no usable "
      "GPU, 3 wrong usage",
      "gpu-check");
  app.add_option("--only", options.only, "Run only these programs, by name")->delimiter(',');
  app.add_flag("--once", options.once,
               "Run none again in other ways (compute-sanitizer, MPS), which takes long");
  app.add_option("--out", options.out, "The JSON file")->capture_default_str();
  app.add_option("--programs", options.folder,
                 "The folder of the programs and of their list"
                 " (that of this program)");
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) {
    return *ended == tessera::kExitUsage ? gpu_check::kExitWrongUsage : *ended;
  }
  for (int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, Interrupted);
  return gpu_check::RunCheck(options, Look(), &std::cerr, &std::cout);
}
