// A connection of its own to the coordinator, for one stream of tensors: a slow one holds up no
// other, nor the worker's line.
#ifndef TESSERA_WORKER_AGENT_RELAY_CHANNEL_H_
#define TESSERA_WORKER_AGENT_RELAY_CHANNEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "net/transport_security.h"

namespace tessera {

// A coordinator that is frozen, or whose machine is gone, ends its streams within seconds.
// Errors: as OpenChannel.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRelayChannel(const DialOptions& coordinator);

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_RELAY_CHANNEL_H_
