// Lets clients that the coordinator names map jobs' states: a session is a stream to the
// coordinator, and while it lasts this worker's descriptor socket gives descriptors to any client
// that shows it.
//
//   ServeState ──► a thread: hello ──► offer: a grant / offered ──► the stream's end: no grant
//
// Of one worker all sessions go over one connection: next to nothing is sent. Thread-safe.
#ifndef TESSERA_WORKER_AGENT_MAP_RELAY_H_
#define TESSERA_WORKER_AGENT_MAP_RELAY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "net/transport_security.h"
#include "proto/coordinator.pb.h"
#include "worker/agent/relay_sessions.h"
#include "worker/keeper/state_map.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace tessera {

class MapRelay {
 public:
  struct Options {
    DialOptions coordinator;
    std::string worker_id;
    std::string descriptor_socket;
    MapGrants* grants = nullptr;  // Not owned.
  };
  explicit MapRelay(Options options);
  ~MapRelay();  // Stop().

  // Returns at once; of a session as IsMapSession (job/map_session.h). Where as many as may be are
  // served the session is not opened, and the coordinator's wait for it ends.
  void Serve(const v1::ServeState& command);
  // Ends all sessions, and their grants.
  void Stop();

 private:
  static constexpr size_t kMaxSessions = 64;
  class Session;
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connection();

  const Options options_;
  absl::Mutex mu_;
  std::shared_ptr<grpc::Channel> connection_ ABSL_GUARDED_BY(mu_);  // Null: none was needed yet.
  RelaySessions<Session> sessions_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_MAP_RELAY_H_
