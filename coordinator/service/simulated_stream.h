// A worker's stream as gRPC gives it: each direction is ordered and loses nothing while the stream
// lives. Each side learns at a time of its own that it is over. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_STREAM_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_STREAM_H_

#include <deque>
#include <memory>
#include <optional>

#include "coordinator/core/events.h"
#include "proto/coordinator.pb.h"

namespace tessera::coordinator {

struct SimulatedStream {
  WorkerId owner;
  std::deque<v1::WorkerEvent> up;           // In flight to the coordinator.
  std::deque<v1::CoordinatorCommand> down;  // In flight to the worker.
  bool worker_left = false;                 // The worker reads and writes no more.
  bool coordinator_left = false;            // So does the coordinator.
  std::optional<Sender> sender;             // Once the coordinator has read the first event.
};
using SimulatedStreamPtr = std::shared_ptr<SimulatedStream>;

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_STREAM_H_
