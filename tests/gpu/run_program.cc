#include "tests/gpu/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera {
namespace gpu_check {
namespace {

std::atomic<pid_t> running_group{0};

// Between fork and exec: only what is async-signal-safe.
[[noreturn]] void BecomeProgram(char* const* arguments, int log) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(127);
  execv(arguments[0], arguments);
  _exit(127);
}

// Until the process has ended or the deadline has come; says which. Leaves it to be waited for, so
// that its number stays its own. By polling: descriptors of processes are not everywhere.
absl::StatusOr<bool> AwaitEnd(pid_t pid, absl::Time deadline) {
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR) {
      return ErrnoStatus(errno, "waitid");
    }
    if (info.si_pid == pid) return true;
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

absl::StatusOr<std::string> ReadFrom(int file, off_t begin) {
  std::string text;
  char piece[64 << 10];
  for (;;) {
    const ssize_t length = pread(file, piece, sizeof(piece), begin + text.size());
    if (length < 0) return ErrnoStatus(errno, "read the log");
    if (length == 0) return text;
    text.append(piece, length);
  }
}

}  // namespace

absl::StatusOr<ProgramEnd> RunProgram(const std::vector<std::string>& arguments,
                                      absl::Duration deadline, const std::string& log) {
  if (access(arguments[0].c_str(), X_OK) != 0) return ErrnoStatus(errno, arguments[0]);
  const UniqueFd file(open(log.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, log);
  const off_t begin = lseek(file.get(), 0, SEEK_END);
  std::vector<char*> raw;
  for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);

  const absl::Time started = absl::Now();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) BecomeProgram(raw.data(), file.get());
  setpgid(pid, pid);  // Parent or child, whichever is first.
  running_group = pid;
  const absl::StatusOr<bool> ended = AwaitEnd(pid, started + deadline);
  // Also where it has ended: it may have left other processes.
  kill(-pid, SIGKILL);
  running_group = 0;
  int wait_status = 0;
  while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  RETURN_IF_ERROR(ended.status());

  ProgramEnd end;
  end.killed = !*ended;
  end.exit_status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
  end.seconds = absl::ToDoubleSeconds(absl::Now() - started);
  ASSIGN_OR_RETURN(end.output, ReadFrom(file.get(), begin));
  return end;
}

void KillRunningProgram() {
  const pid_t group = running_group;
  if (group > 0) kill(-group, SIGKILL);
}

}  // namespace gpu_check
}  // namespace tessera
