#include "worker/executor/executor_program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/closed_process.h"
#include "base/command_line.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "base/version.h"
#include "checkpoint/storage/mapped_window.h"
#include "worker/device/cuda/cuda_versions.h"
#include "worker/executor/rank_executor.h"

namespace tessera {
namespace {

// Where memory runs out, an executor ends before the worker, which has all jobs' memory.
void EndFirst() {
  const UniqueFd score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  // If it fails, the kernel chooses by itself, which is no reason not to start.
  if (score.valid()) (void)!write(score.get(), "500", 3);
}

}  // namespace

int RunExecutorProgram(int argc, char** argv, ExecutorMachine machine) {
  int socket_fd = -1;
  std::string label, log_level, faults;
  CLI::App app("One rank's executor. The worker starts it; it is of no use on its own.",
               "tessera-executor");
  app.add_option("--socket-fd", socket_fd, "the socket to the worker")->required();
  app.add_option("--label", label, "job and rank, for log lines")->required();
  app.add_option("--log-level", log_level, "debug, info, warning or error")->default_val("info");
  app.add_option(
         "--direct-write-bytes", machine.direct_write_bytes,
         "size from which a write to a checkpoint file bypasses the page cache; 0: no write does")
      ->capture_default_str()
      ->check(WholeNumber(0, kMaxDirectFromBytes));
  bool debuggable = false;
  app.add_flag("--debuggable", debuggable, kDebuggableHelp);
  app.add_option("--fault-points", faults, "for tests");
  app.set_version_flag("--version", [] {
    return absl::StrCat("tessera-executor ", kVersion, ", ", Describe(QueryCudaVersions()));
  });
  if (const auto ended = ParseCommandLine(&app, argc, argv)) return *ended;
  EndFirst();
  // Other processes of the user must not reach its memory and descriptors through /proc.
  if (!debuggable) CloseProcess();
  SetLogContext("executor " + label);
  LetFilesBeMapped();
  const auto tell = [&label](const absl::Status& status) {
    fprintf(stderr, "tessera-executor %s: %s\n", label.c_str(), status.ToString().c_str());
  };
  machine.end_process = [&tell](const absl::Status& why) {
    tell(why);
    _exit(1);  // Not exit: a library that is stuck would be waited for by its own exit handlers.
  };
  absl::Status status = SetLogLevel(log_level);
  if (status.ok()) status = ArmFaultPointsFromFlag(faults);
  if (status.ok()) status = RunRankExecutor(UniqueFd(socket_fd), machine);
  if (status.ok()) return 0;
  tell(status);
  return 1;
}

}  // namespace tessera
