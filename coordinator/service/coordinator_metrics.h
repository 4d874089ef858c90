// What a coordinator shows to Prometheus, and whether it is well. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_COORDINATOR_METRICS_H_
#define TESSERA_COORDINATOR_SERVICE_COORDINATOR_METRICS_H_

#include <map>
#include <string>

#include "coordinator/service/call_server.h"
#include "coordinator/service/coordinator_host.h"
#include "net/http_listener.h"

namespace tessera::coordinator {

// "/metrics"; "/healthz", 200 while the coordinator makes progress; "/readyz", 200 while it can also
// write its journal. Both outlive the pages.
std::map<std::string, HttpPage> CoordinatorPages(CoordinatorHost* host, const CallServer* calls);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_COORDINATOR_METRICS_H_
