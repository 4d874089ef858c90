#include "tests/demo/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::demo {
namespace {

int StatusOf(int raw) { return WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw); }

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& args, const std::string& log_path) {
  if (access(args[0].c_str(), X_OK) != 0)
    return ErrnoStatus(errno, absl::StrCat("binary ", args[0]));
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd read_end(pipe_fds[0]), write_end(pipe_fds[1]);
  UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log.valid()) return ErrnoStatus(errno, absl::StrCat("open ", log_path));
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(write_end.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, std::move(read_end)));
}

ChildProcess::~ChildProcess() {
  Kill(SIGKILL);
  Wait();
}

std::vector<std::string> ChildProcess::ReadLines() {
  char buffer[4096];
  while (!at_end_) {
    const ssize_t got = read(output_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;  // Nothing there now.
    if (got == 0) at_end_ = true;
    partial_.append(buffer, got);
  }
  std::vector<std::string> lines;
  size_t newline;
  while ((newline = partial_.find('\n')) != std::string::npos) {
    lines.push_back(partial_.substr(0, newline));
    partial_.erase(0, newline + 1);
  }
  return lines;
}

void ChildProcess::Kill(int signal) {
  if (!status_.has_value()) kill(pid_, signal);
}

int ChildProcess::Wait() {
  int raw = 0;
  while (!status_.has_value()) {
    if (waitpid(pid_, &raw, 0) == pid_) status_ = StatusOf(raw);
    if (errno == ECHILD) break;
  }
  return status_.value_or(-1);
}

bool ChildProcess::running() {
  int raw = 0;
  if (!status_.has_value() && waitpid(pid_, &raw, WNOHANG) == pid_) status_ = StatusOf(raw);
  return !status_.has_value();
}

}  // namespace tessera::demo
