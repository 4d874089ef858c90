// What one connection takes of the gRPC servers of this process, whatever its client does: calls
// that it has begun, and calls that it has ended, by resetting them, before the server has dealt
// with them. gRPC 1.51 counts only the former, and only for clients that acknowledge what they are
// told; another version of gRPC has its own limits, and nothing here has an effect.
//
// Of ended calls that still take memory there are kMaxEnded places for all connections, and
//
//   a connection's calls are let in   while it has fewer ended ones than are free, or than kAlways
//
// What it begins otherwise is reset as REFUSED_STREAM, after which gRPC's clients try again. If more
// than kMaxRefused are refused before all of its ended calls are freed, the connection is ended:
// reading what it sends would keep the server from everybody else.
//
// gRPC 1.51 looks at the size of a message once all of it is there. Where all servers of a process
// take small requests alone, a client that announces a larger one has its connection ended at once.
#ifndef TESSERA_NET_SERVER_CONNECTIONS_H_
#define TESSERA_NET_SERVER_CONNECTIONS_H_

#include "grpcpp/server_builder.h"

namespace tessera {

class ServerConnections {
 public:
  // At a time, as clients are told; gRPC's wait with more. Of a client that has acknowledged nothing
  // yet: kMaxCallsBefore, and gRPC ends the connection of one that begins more.
  static constexpr int kMaxCalls = 64;
  static constexpr int kMaxCallsBefore = 16;
  static constexpr int kMaxEnded = 256;
  static constexpr int kAlways = 16;
  static constexpr int kMaxRefused = kMaxCalls;

  static constexpr int kMaxSmallRequestBytes = 4 << 10;

  enum class Requests { kAny, kSmall };
  // Before the server is built.
  static void Limit(grpc::ServerBuilder* builder, Requests requests);
};

}  // namespace tessera

#endif  // TESSERA_NET_SERVER_CONNECTIONS_H_
