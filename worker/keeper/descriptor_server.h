// Hands descriptors of memory to processes of this host (proto/local.proto), and notices when
// trainers die: the Unix socket on which a trainer got its descriptors stays open for as long as it
// is attached, and its end is the trainer's end.
//
//   trainer: connect, send attach ──► server: send descriptors      ... attached ...
//   trainer: send report, ...
//   trainer: send detach, close ──► clean end;   close alone (or SIGKILL) ──► the trainer died
//
// Clients that map a job's state come here too. They get one answer, for which nobody waits, keep
// the socket for as long as they map, and are told when nothing newer comes. Of one that hangs or
// dies nothing is left.
//
// Every user of the host who can reach the socket may connect: a trainer of another user than this
// process's needs its job's key, and only the own user maps state. A client that sends no request
// within `request_timeout`, or that comes while too many others have sent none yet, is sent away;
// other users together get at most a quarter of these places. If the process has no descriptor or
// thread left, new trainers wait or are sent away and attached ones continue. Start/Stop from one
// thread; serves on threads of its own.
#ifndef TESSERA_WORKER_KEEPER_DESCRIPTOR_SERVER_H_
#define TESSERA_WORKER_KEEPER_DESCRIPTOR_SERVER_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "job/field_limits.h"
#include "proto/local.pb.h"
#include "shm/fd_passing.h"
#include "worker/keeper/direct_maps.h"
#include "worker/keeper/keeper.h"

namespace tessera {

class DescriptorServer {
 public:
  struct Options {
    absl::Duration request_timeout = absl::Seconds(10);
    // Connections, of all trainers of a job at once and more; those that were given something are
    // bounded by the ranks.
    int max_silent = 2 * kMaxLocalRanks;
    DirectMaps* direct_maps = nullptr;  // Not owned; null: no client maps state.
  };
  // `keeper` outlives the server. Errors: as ListenPacketSocket; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(const std::string& path,
                                                                 Keeper* keeper,
                                                                 const Options& options);
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(const std::string& path,
                                                                 Keeper* keeper) {
    return Start(path, keeper, Options());
  }
  ~DescriptorServer();  // Stops; every trainer still attached counts as gone.

  const std::string& path() const { return path_; }

 private:
  struct Connection {
    UniqueFd socket;
    std::thread thread;
    uid_t uid = 0;
    bool was_given = false;  // It got its request.
    bool finished = false;
  };

  DescriptorServer(std::string path, UniqueFd listener, UniqueFd wake, Keeper* keeper,
                   const Options& options);
  void AcceptLoop();
  // Takes all that wait. Errors: of accept4, where waiting may help.
  absl::Status AcceptWaiting();
  void Admit(UniqueFd socket);
  absl::Status CheckHasRoom(const PacketPeer& peer);
  // A client that has already sent a request for a map is answered before it gets a thread, which
  // would take as long as everything else. False: it was refused.
  bool AnswerAtOnce(int socket, const PacketPeer& peer, std::unique_ptr<DirectMap>* map);
  // Takes the socket unless it fails.
  absl::Status StartServing(UniqueFd* socket, const PacketPeer& peer,
                            std::unique_ptr<DirectMap> answered);
  absl::StatusOr<v1::LocalRequest> ReceiveRequest(int socket) const;
  void Serve(int socket, const PacketPeer& peer, std::unique_ptr<DirectMap> answered);
  // Errors: are the client's to hear.
  absl::Status ServeRequest(int socket, const PacketPeer& peer);
  absl::Status ServeTrainer(int socket, const PacketPeer& peer, const v1::AttachRequest& request);
  // Until the trainer leaves: its reports, and whether it says that it is done.
  Leaving HearTrainer(int socket, const AttachedTrainer& trainer);
  void NoteGiven(int socket);
  // Says why, and leaves a line in the log.
  void Refuse(int socket, const PacketPeer& peer, absl::Status why);
  void ReapFinished();
  void WakeAcceptor();

  const std::string path_;
  const UniqueFd listener_;
  const UniqueFd wake_;  // An eventfd: a connection finished, or the server stops.
  Keeper* const keeper_;
  const Options options_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_told_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // Of a refusal.
  absl::flat_hash_map<int, std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_DESCRIPTOR_SERVER_H_
