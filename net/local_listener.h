// A Unix socket on which a gRPC server takes calls of this machine's users, and knows of each whose
// it is. gRPC alone does not say it: so connections are taken here, and handed to the server.
//
//   path, mode 0666 ──accept──► uid, as the kernel says ──descriptor──► grpc::Server
//
// gRPC names such a peer by the descriptor's number. So a number stays its first user's: another
// user's connection never gets it, and a call that is still running when its connection has ended
// is not taken for somebody else's.
//
// Thread-safe.
#ifndef TESSERA_NET_LOCAL_LISTENER_H_
#define TESSERA_NET_LOCAL_LISTENER_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace tessera {

class LocalListener {
 public:
  // Takes the path over from a process that has ended. The folder is there, and whoever may write to
  // it may pretend to be this server.
  // Errors: InvalidArgument  the path is too long, or something else than a socket is there
  //         AlreadyExists    somebody listens there; and others of files
  static absl::StatusOr<std::unique_ptr<LocalListener>> Bind(const std::string& path);
  ~LocalListener();  // Stop().

  // Hands connections to `server`, which outlives this or Stop(). Once.
  // Errors: ResourceExhausted  no thread can be made
  absl::Status Serve(grpc::Server* server);
  // Takes no more, and removes the socket. Idempotent.
  void Stop();

  // The user who made the connection that gRPC calls `peer`, e.g. "fd:17"; nullopt: not one of these.
  std::optional<uid_t> UserOf(absl::string_view peer) const;

 private:
  LocalListener(std::string path, UniqueFd listener, UniqueFd stop)
      : path_(std::move(path)), listener_(std::move(listener)), stop_(std::move(stop)) {}

  void Run(grpc::Server* server);
  // Under a number that is the user's. Invalid: it has too many connections.
  UniqueFd Number(UniqueFd connection, uid_t user);

  const std::string path_;
  const UniqueFd listener_;
  const UniqueFd stop_;  // An eventfd.
  std::thread thread_;
  mutable absl::Mutex mu_;
  std::map<int, uid_t> users_ ABSL_GUARDED_BY(mu_);  // By descriptor.
  std::map<uid_t, std::set<int>> numbers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_NET_LOCAL_LISTENER_H_
