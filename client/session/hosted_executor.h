// The thread by which a trainer's process runs its rank's executor. Thread-safe.
#ifndef TESSERA_CLIENT_SESSION_HOSTED_EXECUTOR_H_
#define TESSERA_CLIENT_SESSION_HOSTED_EXECUTOR_H_

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "tessera/session_options.h"

namespace tessera {

class HostedExecutor {
 public:
  // Runs `host` with the socket, on which its worker gives it all else. Errors: ResourceExhausted
  // no thread or descriptor; the socket is closed then.
  static absl::StatusOr<std::unique_ptr<HostedExecutor>> Start(HostExecutor host, UniqueFd socket,
                                                               int rank);
  // Makes it end as if its worker were gone, and waits for that; one that is stuck is abandoned,
  // and keeps the rank until the process ends.
  ~HostedExecutor();

  bool running() const;
  absl::Status status() const;  // How it ended, or why it is stuck; OK while it runs.

 private:
  HostedExecutor(UniqueFd socket, int rank) : socket_(std::move(socket)), rank_(rank) {}
  void Run(const HostExecutor& host, UniqueFd socket);
  void NoteStuck(const absl::Status& why);

  const UniqueFd socket_;  // The same socket, by a descriptor of its own.
  const int rank_;
  mutable absl::Mutex mu_;
  bool running_ ABSL_GUARDED_BY(mu_) = true;
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_HOSTED_EXECUTOR_H_
