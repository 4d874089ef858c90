// Hands descriptors to trainers, and notices when they die: the Unix socket on which a trainer got
// its descriptors stays open for as long as it is attached, and its end is the trainer's end.
//
//   trainer: connect, send ticket ──► server: send descriptors      ... attached ...
//   trainer: send "detach", close ──► clean end;   close alone (or SIGKILL) ──► the trainer died
//
// Start/Stop from one thread; serves on threads of its own.
#ifndef TESSERA_WORKER_KEEPER_DESCRIPTOR_SERVER_H_
#define TESSERA_WORKER_KEEPER_DESCRIPTOR_SERVER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "worker/keeper/keeper.h"

namespace tessera {

class DescriptorServer {
 public:
  // `keeper` outlives the server. Errors: as ListenPacketSocket.
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(const std::string& path,
                                                                 Keeper* keeper);
  ~DescriptorServer();  // Stops; every trainer still attached counts as gone.

  const std::string& path() const { return path_; }

 private:
  DescriptorServer(std::string path, UniqueFd listener, Keeper* keeper);
  void AcceptLoop();
  absl::StatusOr<ClaimedAttachment> ReceiveClaim(int socket);
  void Serve(int socket);
  void ReapFinished();

  const std::string path_;
  const UniqueFd listener_;
  Keeper* const keeper_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  struct Connection {
    UniqueFd socket;
    std::thread thread;
    bool finished = false;
  };
  absl::flat_hash_map<int, std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_DESCRIPTOR_SERVER_H_
