// A whole coordinator in this process: journal, core, gRPC services with health.
//
//   auto server = CoordinatorServer::Start({.listen_address = "127.0.0.1:0"});
//   ... server->port() ...
//   server->Stop();
//
// Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SERVER_H_
#define TESSERA_COORDINATOR_SERVICE_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "net/transport_security.h"

namespace tessera::coordinator {

class CoordinatorServer {
 public:
  struct Options {
    // "host:port"; port 0: one that is free. Empty: only local_socket.
    std::string listen_address = "127.0.0.1:7070";
    // A Unix socket for this machine's users, each of whom is known there; empty: none.
    std::string local_socket;
    // Who may do what, as AccessRules::Make has it.
    std::vector<std::string> grants;
    std::vector<std::string> save_roots;
    // Of calls over TCP without TLS; empty: AccessTokenPath() of net/access_token.h.
    std::string token_file;
    std::string journal_path;  // Empty: in memory, gone with this object.
    // The cluster whose workers a new journal takes over, for one that was lost; empty: it begins a
    // new cluster. Of a journal that is not new: must be its own.
    std::string cluster_id;
    // The journal may be an older copy: what workers hold of later changes is taken over.
    bool older_journal = false;
    // "host:port" of metrics and health over HTTP; empty: none.
    std::string http_listen_address;
    bool insecure_http_listen = false;  // As insecure_listen.
    bool insecure_listen = false;       // Permits an address that others can reach, without TLS.
    TlsFiles tls;                       // With them every client needs a certificate of the CA.
    absl::Duration worker_timeout = absl::Seconds(10);
    absl::Duration heartbeat_interval = absl::Seconds(1);  // Workers are told to keep to it.
    // How long a worker that lives may take to prepare an epoch; see CoordinatorOptions.
    absl::Duration prepare_timeout = absl::Minutes(1);
    // How soon an epoch begins again that keeps failing without a step; see CoordinatorOptions.
    absl::Duration restart_delay = absl::Milliseconds(100);
    // A rank that others have waited for at an operation for this long, and for two heartbeats, is
    // an event; 0: none is. With end_hung_epochs its epoch ends.
    absl::Duration hang_after = absl::Seconds(30);
    bool end_hung_epochs = false;
    // Places the ranks of a job on any workers, not on one: for workers whose ranks reach each
    // other across hosts (docs/adr/0007-a-job-is-placed-on-one-worker-if-one-has-room.md).
    bool spread_ranks = false;
    // How long a client may take to take a reply, or to read or send a piece of a job's state.
    absl::Duration live_client_timeout = absl::Minutes(1);
    // How long a client may take to send a request, or a stream's first message.
    absl::Duration request_timeout = absl::Seconds(10);
    // Calls at a time, of each kind; one client has up to half of them (call_limits.h).
    int max_calls = 1024;
    // Of this process: above five eighths of it, the requests and replies that take longest are
    // ended. 0: as many as it takes.
    int64_t max_memory_bytes = 0;
    // See CoordinatorOptions.
    int64_t max_jobs_of_owner = 100;
    int64_t max_model_bytes_of_owner = int64_t{64} << 20;
    int64_t max_model_bytes = int64_t{192} << 20;
    Clock* clock = Clock::Real();
  };

  // Errors: InvalidArgument     a malformed address, grant or save root; a limit that is not
  // positive; a timeout that is not
  //                             larger than the interval or one of them that is not positive; some
  //                             but not all TLS files
  //         FailedPrecondition  not a loopback address and neither TLS nor insecure_listen;
  //                             the journal is of a newer version or held by another process
  //         AlreadyExists       the address is in use (names it)
  //         NotFound            a TLS file or the host; other errors of files as of
  //                             MakeServerCredentials (net/credentials.h)
  //         and as HttpListener::Start, naming --http-listen, LocalListener::Bind, ReadOrMakeAccessToken, SqliteJournal::Open and
  //         CoordinatorHost::Create
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const Options& options);
  virtual ~CoordinatorServer() = default;  // Stops.

  virtual int port() const = 0;       // 0: it has none.
  virtual int http_port() const = 0;  // Likewise.
  // Returns once it has done something, which it cannot while it hangs. False: it is stopped.
  virtual bool AwaitProgress() = 0;
  // Ends every call and returns when none runs. Idempotent.
  virtual void Stop() = 0;
  // Returns when Stop was called, by whatever thread.
  virtual void Wait() = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVER_H_
