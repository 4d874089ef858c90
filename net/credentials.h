// gRPC credentials and channels by the rule of transport_security.h. Stateless; thread-safe.
#ifndef TESSERA_NET_CREDENTIALS_H_
#define TESSERA_NET_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "net/keepalive.h"
#include "net/transport_security.h"

namespace grpc {
class ServerBuilder;
}  // namespace grpc

namespace tessera {

// What a server may send of a stream before its client takes it. gRPC would measure connections and
// let it grow with them: on a busy machine to tens of MiB.
inline constexpr int kStreamWindowBytes = 4 << 20;

// With TLS, every client needs a certificate that the CA signed.
// Errors: as ChooseProtection, and
//         NotFound, PermissionDenied, ...  a TLS file cannot be read (names it)
//         InvalidArgument                  a TLS file is not in PEM form, is a folder, a pipe or a
//                                          device, has more than 1 MiB, or is a key with a
//                                          passphrase (names it)
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const std::string& listen_address, const TlsFiles& tls, bool insecure_listen);

// Connects at the first call, not here; never through a proxy; with kStreamWindowBytes. A handshake
// that fails is then an Unavailable call. To a coordinator over TCP without TLS each call carries
// this user's token (access_token.h), where there is one. Errors: as MakeServerCredentials, and
// ReadAccessToken's.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const DialOptions& options,
                                                           grpc::ChannelArguments arguments);

// For calls without a deadline, which would wait for ever for a machine that lost its power. The
// server must permit it.
void SetKeepalive(const Keepalive& keepalive, grpc::ChannelArguments* arguments);
// Of a server: clients may send a ping each second, also while nothing else is sent.
void PermitPings(grpc::ServerBuilder* builder);
// And clients whose machine is gone end within half a minute.
void SetKeepalive(grpc::ServerBuilder* builder);

// What OpenChannel would say, for programs that refuse wrong flags at their start.
absl::Status CheckDialOptions(const DialOptions& options);

}  // namespace tessera

#endif  // TESSERA_NET_CREDENTIALS_H_
