// A worker's stream of one put, as gRPC gives it: see SimulatedStream. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_LINE_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_LINE_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/core/types.h"
#include "proto/live_put.pb.h"

namespace tessera::coordinator {

struct SimulatedPutLine {
  WorkerId worker;
  std::string session;
  std::deque<v1::PutEvent> up;      // In flight to the coordinator.
  std::deque<v1::PutCommand> down;  // In flight to the worker.
  bool worker_left = false;         // The worker reads and writes no more.
  bool coordinator_left = false;    // So does the coordinator.
};
using SimulatedPutLinePtr = std::shared_ptr<SimulatedPutLine>;

// Null: the coordinator has no such session any more.
using FindPutLine = std::function<SimulatedPutLinePtr(const std::string& session)>;

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_PUT_LINE_H_
