// A Unix socket on which a gRPC server takes calls of this machine's users, and knows of each whose
// it is. gRPC alone does not say it: so connections are taken here, and handed to the server.
//
//   path, mode 0666 ──accept──► uid, as the kernel says ──descriptor──► grpc::Server
//
// gRPC names such a peer by the descriptor's number. So a number stays its user's for a while after
// its connection has ended: another user's connection does not get it, and a call that is still
// running then is not taken for somebody else's.
//
// A user has up to 512 connections, and others than this process's own and root together no more
// than three quarters of the descriptors that the process may have.
//
// Thread-safe.
#ifndef TESSERA_NET_LOCAL_LISTENER_H_
#define TESSERA_NET_LOCAL_LISTENER_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "net/accept_loop.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace tessera {

class LocalListener {
 public:
  // Takes the path over from a process that has ended. The folder must exist; a user who can write
  // to it can pretend to be this server. Errors: InvalidArgument  the path is too long, or
  // something else than a socket is there
  //         AlreadyExists    somebody listens there; and others of files
  static absl::StatusOr<std::unique_ptr<LocalListener>> Bind(const std::string& path);
  ~LocalListener();  // Stop().

  // Hands connections to `server`, which outlives this or Stop(). Once.
  // Errors: as AcceptLoop::Start
  absl::Status Serve(grpc::Server* server);
  // Takes no more, and removes the socket. Idempotent.
  void Stop();

  // The user who made the connection that gRPC calls `peer`, e.g. "fd:17"; nullopt: not one of this
  // listener's.
  std::optional<uid_t> UserOf(absl::string_view peer) const;

 private:
  LocalListener(const std::string& path, UniqueFd listener);

  // A descriptor that is a user's.
  struct Owned {
    uid_t user = 0;
    ino_t socket = 0;  // Which connection it is.
    absl::Time ended_at =
        absl::InfiniteFuture();  // When it was first seen not to be that any more.
  };

  absl::Status Take(UniqueFd connection, grpc::Server* server);
  // The connection under a number that is the user's.
  // Errors: ResourceExhausted  the user has too many connections, or the process has
  absl::StatusOr<UniqueFd> Number(const UniqueFd& connection, uid_t user);
  // Lets go of numbers whose connections ended a while ago. Returns how many this user has.
  size_t Sweep(uid_t user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  mutable absl::Mutex mu_;
  std::map<int, Owned> owned_ ABSL_GUARDED_BY(mu_);  // By descriptor.
  AcceptLoop loop_;
};

}  // namespace tessera

#endif  // TESSERA_NET_LOCAL_LISTENER_H_
