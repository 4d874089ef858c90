// Takes connections from sockets that listen, on a thread of its own. While the process or the
// machine has no free descriptor they wait in the kernel; gRPC 1.51's own listener never accepts
// again after that. Its owner calls it from one thread.
#ifndef TESSERA_NET_ACCEPT_LOOP_H_
#define TESSERA_NET_ACCEPT_LOOP_H_

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace tessera {

class AcceptLoop {
 public:
  // A connection, which does not block. An error says why it gets none, for the log.
  using Take = std::function<absl::Status(UniqueFd connection)>;

  // They do not block. `name` is the log's: "socket '/run/...'".
  AcceptLoop(std::string name, std::vector<UniqueFd> sockets);
  AcceptLoop(std::string name, UniqueFd socket);
  ~AcceptLoop();  // Stop().

  // Calls `take` on the loop's thread. Once.
  // Errors: ResourceExhausted  no thread or descriptor is there
  absl::Status Start(Take take);
  // Takes no more. Whether it ran until then.
  bool Stop();

 private:
  void Run(const Take& take);
  // Of those that wait, at most a few. False: no descriptor is free.
  bool AcceptFrom(const UniqueFd& socket, const Take& take);
  void Warn(const std::string& what);

  const std::string name_;
  std::vector<UniqueFd> sockets_;
  UniqueFd stop_;  // An eventfd.
  absl::Time warned_at_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_NET_ACCEPT_LOOP_H_
