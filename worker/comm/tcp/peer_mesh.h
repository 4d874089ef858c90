// Connections of one rank to ranks of other hosts, and the exchange of bytes over them.
//
//   Listen ──► address() ──(all addresses, by way of the coordinator)──► Connect ──► Exchange ...
//
// A connection carries frames, in the order of the calls of both ends:
//
//   | magic u32 | kind u32 | digest u64 | sequence u64 | bytes u64 | bytes |      little-endian
//
// kind 1: one Exchange; `digest` says which operation it belongs to and must be the same at both
// ends. kind 2: the sender has failed; the bytes are why.
//
// An address contains a secret of its listener, and a connecting peer must show it: only one that
// learned it through the coordinator gets in. The exchanged data is not encrypted.
//
// One thread uses a mesh; Abort may come from any thread.
#ifndef TESSERA_WORKER_COMM_TCP_PEER_MESH_H_
#define TESSERA_WORKER_COMM_TCP_PEER_MESH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tessera {

class PeerMesh {
 public:
  struct Options {
    int rank = 0;
    int group_size = 1;      // Ranks there are, for messages.
    std::vector<int> peers;  // Ranks to connect with; each of them has this one among its own.
    uint32_t epoch = 1;      // Of all peers; others are turned away.
    std::string listen_host = "127.0.0.1";  // An address of this host, which the peers reach.
  };
  // Bytes of one end of an exchange with `peer`, in the order in which they travel.
  struct Part {
    int peer = 0;
    void* data = nullptr;  // Of what is sent: only read.
    int64_t bytes = 0;
  };
  struct Operation {
    uint64_t digest = 0;
    // For messages: what a digest of another rank stands for.
    std::function<std::string(uint64_t digest)> describe;
  };

  // Errors: InvalidArgument  `listen_host` is not an IP address
  //         Unavailable      it is not of this host, or no port is free
  static absl::StatusOr<std::unique_ptr<PeerMesh>> Listen(Options options);
  virtual ~PeerMesh() = default;

  // What the peers must know: "IP PORT SECRET".
  virtual const std::string& address() const = 0;

  // Connects with all peers. `addresses` has those of all of them. `stop`, if not null, is asked
  // now and again whether to give up. Connections that do not show who they are end with this call,
  // or earlier where there are too many. While none can be accepted, as without a free descriptor,
  // it waits.
  // Errors: InvalidArgument   an address is malformed or missing
  //         DeadlineExceeded  peers did not come in time; the message names them
  //         Unavailable       a peer refused the connection
  //         Aborted           Abort was called, or `stop` said so
  virtual absl::Status Connect(const std::map<int, std::string>& addresses, absl::Time deadline,
                               const std::function<bool()>& stop = nullptr) = 0;

  // Sends and receives; returns once everything has come and may be written again. Each of
  // `peers` calls it too, with an equal operation and with this rank among its peers, and receives
  // just as many bytes as are sent to it. Parts of ranks that are not in `peers` are not allowed.
  // Errors: DeadlineExceeded    peers did not come in time; the message names them
  //         FailedPrecondition  a peer is in another operation or sends other sizes; both are named
  //         Unavailable         a connection was lost; the peer is named
  //         Aborted             Abort was called here, or on a peer: the message is its reason
  // After any of these the mesh is unusable.
  virtual absl::Status Exchange(const Operation& operation, absl::Span<const int> peers,
                                absl::Span<const Part> sends, absl::Span<const Part> receives,
                                absl::Time deadline) = 0;

  // Ends what waits, here; the next Exchange, or the one that is ended, returns Aborted.
  virtual void Abort(const absl::Status& reason) = 0;
  // Tells the peers that this rank has failed and why, as far as that can be done without waiting.
  // By the thread that uses the mesh.
  virtual void Tell(const absl::Status& reason) = 0;

  virtual int64_t bytes_received() const = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_TCP_PEER_MESH_H_
