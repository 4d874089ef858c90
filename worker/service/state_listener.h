// Listens for clients of other machines that fetch jobs' states from this worker. Thread-safe.
#ifndef TESSERA_WORKER_SERVICE_STATE_LISTENER_H_
#define TESSERA_WORKER_SERVICE_STATE_LISTENER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "net/transport_security.h"
#include "worker/agent/live_sources.h"

namespace tessera {

class StateListener {
 public:
  // `address`: "host:port", by which clients reach this host; port 0: one that is free. `sources`
  // outlives this.
  // Errors: InvalidArgument  no such address, or one that is not a host's, such as 0.0.0.0
  //         AlreadyExists    another process listens there
  //         as MakeServerCredentials (net/credentials.h)
  static absl::StatusOr<std::unique_ptr<StateListener>> Start(const std::string& address,
                                                              const TlsFiles& tls,
                                                              bool insecure_listen,
                                                              LiveSources* sources);
  virtual ~StateListener() = default;       // Ends all calls.
  virtual std::string address() const = 0;  // With the port that it has.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_STATE_LISTENER_H_
