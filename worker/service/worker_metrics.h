// What a worker shows to Prometheus, and whether it is well. Thread-safe.
#ifndef TESSERA_WORKER_SERVICE_WORKER_METRICS_H_
#define TESSERA_WORKER_SERVICE_WORKER_METRICS_H_

#include <functional>
#include <map>
#include <string>

#include "net/http_listener.h"
#include "worker/keeper/keeper.h"

namespace tessera {

struct WorkerHealth {
  std::function<bool()> makes_progress;  // Returns late, or never, where it hangs.
  std::function<bool()> coordinator_connected;
};

// "/metrics"; "/healthz", 200 while the worker makes progress; "/readyz", 200 while it also hears its
// coordinator. `keeper` outlives the pages.
std::map<std::string, HttpPage> WorkerPages(const Keeper* keeper, WorkerHealth health);

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_WORKER_METRICS_H_
