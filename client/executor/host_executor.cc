#include "client/executor/host_executor.h"

#include <utility>

#include "absl/time/clock.h"
#include "worker/executor/rank_executor.h"

namespace tessera {

HostExecutor RunExecutorHere(ExecutorMachine machine) {
  return [machine = std::move(machine)](UniqueFd socket, const ExecutorIsStuck& stuck) {
    ExecutorMachine here = machine;
    // The process is the trainer's, and is not ended. As long as the socket is open the worker
    // knows that the rank's memory may be written to.
    here.end_process = [stuck](const absl::Status& why) {
      stuck(why);
      absl::SleepFor(absl::InfiniteDuration());
    };
    return RunRankExecutor(std::move(socket), here);
  };
}

}  // namespace tessera
