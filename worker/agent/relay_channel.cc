#include "worker/agent/relay_channel.h"

#include <utility>

#include "net/credentials.h"

namespace tessera {

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRelayChannel(const DialOptions& coordinator) {
  grpc::ChannelArguments args;
  // A coordinator that is gone without closing ends the call after these, and with it a hold.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A connection of its own: bulk data must not stand in the way of commands.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(64 << 20);
  return OpenChannel(coordinator, std::move(args));
}

}  // namespace tessera
