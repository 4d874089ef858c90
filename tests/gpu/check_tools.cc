#include "tests/gpu/check_tools.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tests/gpu/run_program.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr char kPipeVariable[] = "CUDA_MPS_PIPE_DIRECTORY";
constexpr char kLogVariable[] = "CUDA_MPS_LOG_DIRECTORY";
constexpr absl::Duration kQuitPatience = absl::Seconds(30);
constexpr absl::Duration kPoll = absl::Milliseconds(5);

std::atomic<pid_t> daemon_group{0};

// Between fork and exec: only what is async-signal-safe.
[[noreturn]] void BecomeDaemon(const char* tool, int log) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(127);
  execl(tool, tool, "-f", static_cast<char*>(nullptr));  // In the foreground: a child of ours.
  _exit(127);
}

}  // namespace

absl::StatusOr<std::string> FindTool(const std::string& name,
                                     const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::NotFoundError(
      absl::StrCat("there is no ", name, " in ", absl::StrJoin(folders, ", ")));
}

absl::StatusOr<std::unique_ptr<PrivateMps>> PrivateMps::Start(const std::string& tool,
                                                              const std::string& folder,
                                                              const std::string& log,
                                                              absl::Duration patience) {
  const std::string pipe = absl::StrCat(folder, "/pipe"), logs = absl::StrCat(folder, "/log");
  std::error_code error;
  for (const std::string& path : {pipe, logs}) {
    std::filesystem::create_directories(path, error);
    if (error) return absl::InternalError(absl::StrCat(path, ": ", error.message()));
  }
  const UniqueFd file(open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, log);
  setenv(kPipeVariable, pipe.c_str(), 1);
  setenv(kLogVariable, logs.c_str(), 1);
  const pid_t pid = fork();
  if (pid == 0) BecomeDaemon(tool.c_str(), file.get());
  if (pid < 0) {
    unsetenv(kPipeVariable);
    unsetenv(kLogVariable);
    return ErrnoStatus(errno, "fork");
  }
  setpgid(pid, pid);  // Parent or child, whichever is first.
  daemon_group = pid;
  auto daemon = absl::WrapUnique(new PrivateMps(tool, log, pid));
  RETURN_IF_ERROR(daemon->AwaitControl(absl::StrCat(pipe, "/control"), patience));
  return daemon;
}

absl::Status PrivateMps::AwaitControl(const std::string& control, absl::Duration patience) {
  for (const absl::Time deadline = absl::Now() + patience; absl::Now() < deadline;
       absl::SleepFor(kPoll)) {
    if (access(control.c_str(), F_OK) == 0) return absl::OkStatus();
    if (HasEnded()) return absl::FailedPreconditionError(absl::StrCat(tool_, " ended at once"));
  }
  return absl::DeadlineExceededError(absl::StrCat(tool_, " made no ", control));
}

bool PrivateMps::HasEnded() {
  if (!ended_) ended_ = waitpid(pid_, nullptr, WNOHANG) == pid_;
  return ended_;
}

PrivateMps::~PrivateMps() {
  if (!HasEnded()) {
    (void)RunProgram({"/bin/sh", "-c", absl::StrCat("echo quit | '", tool_, "'")}, kQuitPatience,
                     log_);
  }
  for (const absl::Time deadline = absl::Now() + kQuitPatience;
       !HasEnded() && absl::Now() < deadline;) {
    absl::SleepFor(kPoll);
  }
  kill(-pid_, SIGKILL);  // Also where it has ended: its server may be there.
  daemon_group = 0;
  while (!ended_ && waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  unsetenv(kPipeVariable);
  unsetenv(kLogVariable);
}

void KillPrivateMps() {
  const pid_t group = daemon_group;
  if (group > 0) kill(-group, SIGTERM);
}

}  // namespace gpu_check
}  // namespace tessera
