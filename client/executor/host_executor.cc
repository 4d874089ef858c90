#include "client/executor/host_executor.h"

#include <utility>

#include "worker/executor/rank_executor.h"

namespace tessera {

HostExecutor RunExecutorHere(ExecutorMachine machine) {
  return [machine = std::move(machine)](UniqueFd socket) {
    return RunRankExecutor(std::move(socket), machine);
  };
}

}  // namespace tessera
