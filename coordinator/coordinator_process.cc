#include "coordinator/coordinator_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera::coordinator {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

std::string BinaryPath() {
  const char* runfiles = std::getenv("TEST_SRCDIR");
  return absl::StrCat(runfiles == nullptr ? ".." : runfiles,
                      "/tessera/coordinator/tessera-coordinator");
}

std::string ReadWhole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

[[noreturn]] void RunBinary(const std::string& folder, std::vector<std::string> args) {
  const std::string log = folder + "/stderr.log";
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(fd, STDERR_FILENO);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CoordinatorProcess::Start(
    const std::string& folder, const std::vector<std::string>& flags) {
  const std::string port_file = folder + "/port";
  unlink(port_file.c_str());
  const UniqueFd watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (inotify_add_watch(watch.get(), folder.c_str(), IN_MOVED_TO) < 0) {
    return ErrnoStatus(errno, folder);
  }
  std::vector<std::string> args = {BinaryPath()};
  for (const std::string& own : {std::string("--listen=127.0.0.1:0"), "--port-file=" + port_file}) {
    const std::string name = own.substr(0, own.find('=') + 1);
    const bool given = std::any_of(flags.begin(), flags.end(), [&name](const std::string& flag) {
      return absl::StartsWith(flag, name);
    });
    if (!given) args.push_back(own);
  }
  const bool has_journal = std::any_of(flags.begin(), flags.end(), [](const std::string& flag) {
    return absl::StartsWith(flag, "--journal") || flag == "--ephemeral";
  });
  if (!has_journal) args.push_back("--ephemeral");
  args.insert(args.end(), flags.begin(), flags.end());
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) RunBinary(folder, std::move(args));
  auto process = std::unique_ptr<CoordinatorProcess>(new CoordinatorProcess(pid));
  RETURN_IF_ERROR(process->AwaitPort(folder, watch.get()));
  return process;
}

absl::Status CoordinatorProcess::AwaitPort(const std::string& folder, int directory_watch) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    std::ifstream file(folder + "/port");
    if (file >> port_) return absl::OkStatus();
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return absl::FailedPreconditionError(ReadWhole(folder + "/stderr.log"));
    }
    pollfd waits_for[] = {{directory_watch, POLLIN, 0}, {pid_fd_.get(), POLLIN, 0}};
    poll(waits_for, 2, absl::ToInt64Milliseconds(deadline - absl::Now()));
    char events[4096];
    while (read(directory_watch, events, sizeof(events)) > 0) {
    }
  }
  return absl::DeadlineExceededError("the coordinator does not listen");
}

CoordinatorProcess::~CoordinatorProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  Wait();
}

std::string CoordinatorProcess::address() const { return absl::StrCat("127.0.0.1:", port_); }

CoordinatorProcess::CoordinatorProcess(pid_t pid)
    : pid_(pid), pid_fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

void CoordinatorProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

int CoordinatorProcess::Wait() {
  if (pid_ < 0) return 0;
  pollfd waits_for = {pid_fd_.get(), POLLIN, 0};
  const bool ended = poll(&waits_for, 1, absl::ToInt64Milliseconds(kPatience)) == 1;
  if (!ended) Signal(SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  if (!ended) return kDidNotEnd;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace tessera::coordinator
