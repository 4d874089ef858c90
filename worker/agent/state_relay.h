// Sends this worker's part of jobs' states to the coordinator, for clients that read them there, or
// gives it to clients that fetch it themselves.
//
//   ServeState ──► a thread: dials, says hello ──► hold / held ──► copy / copied, pieces
//                                                           or ──► serve / serving, released, sent
//                          of a job that is handed over: ──► read / copied, pieces
//                  another thread reads the stream: its end cancels a copy, and lets go at once
//
// Thread-safe.
#ifndef TESSERA_WORKER_AGENT_STATE_RELAY_H_
#define TESSERA_WORKER_AGENT_STATE_RELAY_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "net/transport_security.h"
#include "proto/coordinator.pb.h"
#include "worker/agent/live_sources.h"
#include "worker/agent/relay_sessions.h"
#include "worker/keeper/frozen_state.h"
#include "worker/keeper/state_snapshot.h"

namespace tessera {

class StateRelay {
 public:
  struct Options {
    DialOptions coordinator;
    std::string worker_id;
    std::string spool_folder;
    LiveSources* sources = nullptr;  // Not owned. Those that clients fetch.
    // Where they do.
    std::function<std::vector<std::string>()> fetch_addresses;
    // Errors: Unavailable  the worker does not hold this generation of the job
    //         as StateSnapshot::Create
    std::function<absl::StatusOr<std::unique_ptr<StateSnapshot>>(
        const std::string& job_id, int64_t generation, const StateSnapshot::Request& request)>
        open;
    // The same of a job that is handed over; as FrozenState::Create.
    std::function<absl::StatusOr<std::unique_ptr<FrozenState>>(const std::string& job_id,
                                                               int64_t generation, int64_t step)>
        open_frozen;
  };
  explicit StateRelay(Options options) : options_(std::move(options)) {}

  // As RelaySessions::Serve.
  void Serve(const v1::ServeState& command);
  // Ends all sessions, and lets go of what they hold.
  void Stop() { sessions_.Stop(); }

 private:
  class Session;

  const Options options_;
  RelaySessions sessions_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_STATE_RELAY_H_
