// What an executor finds on its machine, and how it is to use it. A plain value.
#ifndef TESSERA_WORKER_EXECUTOR_EXECUTOR_MACHINE_H_
#define TESSERA_WORKER_EXECUTOR_EXECUTOR_MACHINE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "checkpoint/storage/direct_writes.h"
#include "worker/comm/direct_communicators.h"
#include "worker/device/host/host_rank_device.h"
#include "worker/device/rank_device.h"

namespace tessera {

struct ExecutorMachine {
  MakeRankDevice make_device = MakeHostRankDevice;  // The device that the setup names.
  MakeDirectCommunicators make_direct;  // For ranks on a GPU; null: data goes through the host.
  // Where executors are processes: ends this one at once, without waiting for threads or for
  // libraries' exit handlers. For when a call that uses the device never returns. Null: they are
  // threads.
  std::function<void(const absl::Status& why)> end_process;
  int64_t direct_write_bytes = kDirectFromBytes;  // Of files; as DirectWrites has it.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EXECUTOR_MACHINE_H_
