#include "worker/keeper/executor_launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/executor/rank_executor.h"
#include "worker/keeper/process_state.h"

namespace tessera {
namespace {

constexpr int kSocketFd = 3;

class ExecutorProcess : public RunningExecutor {
 public:
  explicit ExecutorProcess(pid_t pid) : pid_(pid) {}
  ~ExecutorProcess() override {
    // A pid that was reaped may be another process's.
    if (reaped_) return;
    Kill();
    Wait();
  }
  int pid() const override { return pid_; }
  void Kill() override {
    // Nothing is asked of it first: all that must outlive it is in the keeper's memory.
    if (!reaped_) kill(pid_, SIGKILL);
  }
  std::string Wait() override {
    // EINTR is a signal of this process, not the child's end.
    while (!reaped_ && waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    reaped_ = true;
    if (WIFSIGNALED(status_)) return absl::StrCat("killed by signal ", WTERMSIG(status_));
    return absl::StrCat("exit status ", WEXITSTATUS(status_));
  }
  bool EndsWithin(absl::Duration patience) override {
    const absl::Time deadline = SteadyNow() + patience;
    while (!reaped_) {
      const pid_t ended = waitpid(pid_, &status_, WNOHANG);
      // An error other than EINTR: there is no such child any more.
      if (ended != 0 && !(ended < 0 && errno == EINTR)) reaped_ = true;
      if (reaped_ || SteadyNow() >= deadline) break;
      // Polled, since waitpid has no deadline.
      absl::SleepFor(std::min(absl::Milliseconds(1), patience));
    }
    return reaped_;
  }
  bool is_stopped() const override { return IsStopped(pid_); }
  std::string Describe() const override { return DescribeProcess(pid_); }

 private:
  const pid_t pid_;
  int status_ = 0;
  bool reaped_ = false;
};

class ExecutorThread : public RunningExecutor {
 public:
  explicit ExecutorThread(std::thread thread) : thread_(std::move(thread)) {}
  ~ExecutorThread() override { Wait(); }
  int pid() const override { return getpid(); }
  // No thread can be killed: the end of its socket ends it.
  void Kill() override {}
  std::string Wait() override {
    if (thread_.joinable()) thread_.join();
    return "thread ended";
  }

 private:
  std::thread thread_;
};

class TrainersExecutor : public RunningExecutor {
 public:
  explicit TrainersExecutor(int pid) : pid_(pid) {}
  int pid() const override { return pid_; }
  // It is not this process's child: only the end of its socket is seen.
  void Kill() override {}
  std::string Wait() override { return absl::StrCat("in its trainer's process ", pid_); }

 private:
  const int pid_;
};

class ThreadLauncher : public ExecutorLauncher {
 public:
  explicit ThreadLauncher(ExecutorMachine machine) : machine_(std::move(machine)) {}
  absl::StatusOr<std::unique_ptr<RunningExecutor>> Launch(UniqueFd socket,
                                                          const std::string& label) override {
    ASSIGN_OR_RETURN(std::thread thread, StartThread("an executor", [socket = std::move(socket),
                                                                     machine = machine_]() mutable {
                       const absl::Status status = RunRankExecutor(std::move(socket), machine);
                       if (!status.ok())
                         TESSERA_LOG(ERROR, "executor thread: {}", status.ToString());
                     }));
    return std::make_unique<ExecutorThread>(std::move(thread));
  }
  std::string name() const override { return "a thread"; }

 private:
  const ExecutorMachine machine_;
};

class ProcessLauncher : public ExecutorLauncher {
 public:
  ProcessLauncher(std::string binary, std::vector<std::string> extra_flags)
      : binary_(std::move(binary)), extra_flags_(std::move(extra_flags)) {}

  absl::StatusOr<std::unique_ptr<RunningExecutor>> Launch(UniqueFd socket,
                                                          const std::string& label) override {
    // Before the fork: the child could only say so by an exit status.
    if (access(binary_.c_str(), X_OK) != 0)
      return ErrnoStatus(errno, absl::StrCat("executor ", binary_));
    std::vector<std::string> args = {binary_, absl::StrCat("--socket-fd=", kSocketFd),
                                     absl::StrCat("--label=", label)};
    args.insert(args.end(), extra_flags_.begin(), extra_flags_.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    // Everything that the child needs is made above: after fork it only makes system calls.
    const pid_t pid = fork();
    if (pid < 0) return ErrnoStatus(errno, "fork an executor");
    if (pid == 0) ExecChild(parent, socket.get(), argv.data());
    return std::make_unique<ExecutorProcess>(pid);
  }
  std::string name() const override { return binary_; }

 private:
  [[noreturn]] static void ExecChild(pid_t parent, int socket, char* const* argv) {
    // PR_SET_PDEATHSIG is bound to the thread that forked, which is the worker's supervisor and
    // lives as long as the worker's job does.
    // The executor must not outlive the daemon that supervises it.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have died before prctl.
    if (getppid() != parent) _exit(127);
    // The worker blocks signals in its threads, and masks survive exec.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (socket == kSocketFd) {
      // Close-on-exec would close it at the exec. dup2 clears the flag by itself.
      fcntl(socket, F_SETFD, 0);
    } else {
      dup2(socket, kSocketFd);
    }
    execv(argv[0], argv);
    // Not exit: handlers and buffers are the parent's.
    _exit(127);
  }

  const std::string binary_;
  const std::vector<std::string> extra_flags_;
};

}  // namespace

std::unique_ptr<ExecutorLauncher> NewProcessLauncher(std::string binary,
                                                     std::vector<std::string> extra_flags) {
  return std::make_unique<ProcessLauncher>(std::move(binary), std::move(extra_flags));
}

std::unique_ptr<RunningExecutor> NewTrainersExecutor(int pid) {
  return std::make_unique<TrainersExecutor>(pid);
}

std::unique_ptr<ExecutorLauncher> NewThreadLauncher(ExecutorMachine machine) {
  return std::make_unique<ThreadLauncher>(std::move(machine));
}

}  // namespace tessera
