// Where a gRPC server takes connections over TCP, a share of them from each address of a client:
//
//   socket ──accept──► address has fewer connections than are free ──descriptor──► grpc::Server
//
// There are half as many as the process may have descriptors. So a client that opens all it can,
// as anybody can who reaches the port, takes half of them at most, and the next one half of the
// rest; and the process's own files find a descriptor. Of IPv6 an address is its first 64 bits,
// which is what one network has.
//
// Thread-safe.
#ifndef TESSERA_NET_TCP_LISTENER_H_
#define TESSERA_NET_TCP_LISTENER_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_builder.h"
#include "net/accept_loop.h"
#include "net/address.h"
#include "net/listen_tcp.h"

namespace tessera {

class TcpListener {
 public:
  // As ListenTcp.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Bind(const ServerAddress& address,
                                                           absl::string_view text);

  int port() const { return port_; }
  // Before the server is built.
  void AddTo(grpc::ServerBuilder* builder, std::shared_ptr<grpc::ServerCredentials> credentials);
  // Once it is. Stop(), or the end of this, comes before the server's shutdown.
  // Errors: as AcceptLoop::Start
  absl::Status Serve();
  void Stop() { loop_.Stop(); }

 private:
  struct Connection {
    ino_t socket = 0;
    std::string client;  // Its address.
  };

  TcpListener(TcpSockets sockets, absl::string_view text);

  absl::Status Take(UniqueFd connection);
  // Forgets connections that have ended.
  void Sweep();
  void Forget(std::map<int, Connection>::iterator connection);

  const int port_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  // The rest is the loop's.
  std::map<int, Connection> connections_;  // By descriptor: gRPC closes them.
  std::map<std::string, size_t> num_of_client_;
  size_t sweeps_at_ = 64;  // So many connections.
  absl::Time swept_at_ = absl::InfinitePast();
  AcceptLoop loop_;
};

}  // namespace tessera

#endif  // TESSERA_NET_TCP_LISTENER_H_
