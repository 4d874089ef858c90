// A whole worker in this process: keeper, agent, gRPC service and descriptor socket.
// Start and Stop from one thread; the rest is thread-safe. No gRPC type shows here.
#ifndef TESSERA_WORKER_SERVICE_WORKER_SERVER_H_
#define TESSERA_WORKER_SERVICE_WORKER_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "net/transport_security.h"
#include "worker/device/device_memory.h"
#include "worker/executor/executor_machine.h"
#include "worker/vault/vault_client.h"

namespace tessera {

class WorkerServer {
 public:
  struct Options {
    std::string worker_id;
    std::string coordinator_address;  // "host:port"
    TlsFiles tls = {};                // For the way to the coordinator.
    bool insecure_connect = false;    // Permits a coordinator of another machine without TLS.
    int num_devices = 1;
    int max_ranks_of_job = 0;  // Of the devices, what one job can have; 0: all.
    // An IP address of this host by which other workers' ranks reach this one's, for jobs that no
    // worker has room for alone; empty: no such job comes here. What ranks send each other is not
    // encrypted: an address that is not loopback takes insecure_data too.
    std::string data_host;
    bool insecure_data = false;
    // Folder (made if missing, mode 0700) of the sockets worker.sock and descriptors.sock. Others
    // may not write to it, and the sockets have mode 0600: only this user and root can connect.
    std::string socket_dir;
    // Where copies of jobs' states are stored while clients read them, in files without names. They
    // are as large as what is read: a folder on a disk, for memory they must not take.
    std::string spool_folder = "/tmp";
    // "host:port" for clients of other machines that fetch jobs' states; host as they reach this
    // one by, port 0: one that is free. Empty: they get them through the coordinator. With TLS
    // every client needs a certificate of the CA.
    std::string state_listen_address;
    bool insecure_state_listen = false;  // Permits that other machines come without TLS.
    // "host:port" of metrics and health over HTTP, by the rule of transport_security.h; empty: none.
    std::string http_listen_address;
    bool insecure_http_listen = false;
    // Executors as processes of this binary; empty: as threads of this process.
    std::string executor_binary;
    std::vector<std::string> executor_flags;
    // The GPU that has all ranks' parameters, gradients and shards; null: host memory.
    std::shared_ptr<DeviceMemory> device_memory;
    int64_t memory_bytes = 0;  // Of host memory, for jobs; 0: nine tenths of the machine's.
    ExecutorMachine machine;   // Of executors that are threads; processes find their own.
    // Holds jobs' memory, so that they outlive this process: what an earlier one of this worker
    // left there is taken over. Null: jobs end with this process.
    std::shared_ptr<VaultClient> vault;
  };
  // Errors: InvalidArgument     a missing or malformed option, some but not all TLS files
  //         FailedPrecondition  the coordinator is on another machine and neither TLS files nor
  //                             insecure_connect are given; data_host is not loopback and
  //                             insecure_data is not given
  //         Unavailable         data_host is not an address of this host
  //         AlreadyExists       another worker has the folder
  //         as StateListener::Start, naming --state-listen; as HttpListener::Start, --http-listen
  //         NotFound            no executor binary, a TLS file
  //         as JobVault::TakeOver
  //         PermissionDenied    the folder cannot be made, is another user's or others may write
  //                             to it
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const Options& options);

  virtual ~WorkerServer() = default;
  // Ends jobs, executors and connections; removes the sockets.
  virtual void Stop() = 0;
  // Ends connections alone: with a vault, jobs continue with the next worker of this name. The
  // process is to end at once, and its executors with it.
  virtual void Leave() = 0;
  // Returns once the locks of all jobs could be taken, which they cannot while it hangs. False: its
  // line to the coordinator hangs.
  virtual bool MakesProgress() const = 0;
  virtual std::string address() const = 0;  // "unix:/.../worker.sock"
  virtual bool connected() const = 0;       // To the coordinator.
  virtual int http_port() const = 0;        // 0: it has none.
  // For tests: ends a rank's executor process as SIGKILL does.
  virtual void KillExecutorForTest(const std::string& job_id, int rank) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_WORKER_SERVER_H_
