// The gRPC service of events: asks the gate, checks, asks the host, encodes. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_EVENTS_SERVICE_H_
#define TESSERA_COORDINATOR_SERVICE_EVENTS_SERVICE_H_

#include "absl/status/status.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/serve.h"
#include "proto/events.pb.h"

namespace tessera::coordinator {

// A caller sees the events of workers, as ListWorkers shows these to everybody, and those of jobs
// that it may read. An event keeps the owner that its job had.
class EventsService {
 public:
  EventsService(CoordinatorHost* host, const Gate* gate) : host_(host), gate_(gate) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status List(ServedCall* call, const v1::ListEventsRequest& request,
                    v1::ListEventsResponse* reply);

  CoordinatorHost* const host_;
  const Gate* const gate_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_EVENTS_SERVICE_H_
