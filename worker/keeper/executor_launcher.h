// Starts executors: as processes (the deployment), or as threads of this process (embedding); and
// stands for those that trainers host. Each way the executor speaks over a packet socket, and its
// end closes that socket.
#ifndef TESSERA_WORKER_KEEPER_EXECUTOR_LAUNCHER_H_
#define TESSERA_WORKER_KEEPER_EXECUTOR_LAUNCHER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "worker/executor/executor_machine.h"

namespace tessera {

class RunningExecutor {
 public:
  virtual ~RunningExecutor() = default;
  virtual int pid() const = 0;
  // Ends it at once, whatever it does. A thread ends when its socket closes.
  virtual void Kill() = 0;
  // Waits for its end; returns how it ended, human-readable: "killed by signal 9", "exit status 1".
  virtual std::string Wait() = 0;

  // Of a process that was launched; of other executors nothing is known, and none is waited for.
  // Whether it ended within `patience`. Wait() then says how.
  virtual bool EndsWithin(absl::Duration /*patience*/) { return true; }
  virtual bool is_stopped() const { return false; }  // By a signal, as SIGSTOP.
  // As DescribeProcess: human-readable.
  virtual std::string Describe() const { return absl::StrCat("process ", pid()); }
};

class ExecutorLauncher {
 public:
  virtual ~ExecutorLauncher() = default;
  // `label` names the executor in its log lines.
  // Errors: NotFound the binary is missing; ResourceExhausted no process or thread can be made.
  virtual absl::StatusOr<std::unique_ptr<RunningExecutor>> Launch(UniqueFd socket,
                                                                  const std::string& label) = 0;
  // What it launches, human-readable: the binary's path, or "a thread".
  virtual std::string name() const = 0;
};

// One in the process `pid` of a trainer, which nobody launches: it ends when its socket closes, as
// a thread does; the reader of that socket sees when.
std::unique_ptr<RunningExecutor> NewTrainersExecutor(int pid);

// Runs `binary --socket-fd=3 --label=...` plus `extra_flags`. The process dies with this one, even
// when this one is killed, so no orphan is left.
std::unique_ptr<ExecutorLauncher> NewProcessLauncher(std::string binary,
                                                     std::vector<std::string> extra_flags);
std::unique_ptr<ExecutorLauncher> NewThreadLauncher(ExecutorMachine machine = ExecutorMachine());

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_EXECUTOR_LAUNCHER_H_
