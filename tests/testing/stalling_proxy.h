// Connections to a server that stop in the middle: what goes in one direction passes up to a number
// of bytes, and no further until it is released. So a client is certainly in the middle of what it
// sends or is sent, for as long as a test likes. The held data is kept here: for protocols that
// have a flow control of their own, as gRPC's. The end of either side ends the other. Thread-safe.
#ifndef TESSERA_TESTS_TESTING_STALLING_PROXY_H_
#define TESSERA_TESTS_TESTING_STALLING_PROXY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera::testing_support {

class StallingProxy {
 public:
  enum class Direction { kToServer, kToClient };

  // Listens on any port of 127.0.0.1 and dials port `port` there for each client. `bytes`: of all
  // connections together.
  // Errors: as ErrnoStatus.
  static absl::StatusOr<std::unique_ptr<StallingProxy>> Start(int port, Direction direction,
                                                              int64_t bytes);
  ~StallingProxy();  // Ends all connections.

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  bool has_stalled() const { return has_stalled_.load(); }  // Something was held back.
  void Release();                                           // From now on everything passes.

 private:
  struct Connection {
    UniqueFd client, server;
    std::string to_server, to_client;  // On the way.
    bool server_ended = false;
  };
  StallingProxy(Direction direction, int64_t bytes) : direction_(direction), bytes_left_(bytes) {}
  absl::Status Open(int port);
  void Run();
  void Accept();
  // What may be written of what is on the way in this direction.
  int64_t Sendable(Direction direction, const std::string& bytes);
  void Send(Direction direction, int fd, std::string* bytes);
  // False: the connection is over.
  bool Move(Connection* connection, short client_events, short server_events);
  void Wake();

  const Direction direction_;
  int64_t bytes_left_;  // Of the thread alone.
  int port_ = 0, server_port_ = 0;
  UniqueFd listener_, wake_;
  std::vector<Connection> connections_;
  std::atomic<bool> has_stalled_{false}, released_{false}, stopping_{false};
  std::thread thread_;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_STALLING_PROXY_H_
