// A worker's line to its coordinator: registers, keeps one stream open, sends events and
// heartbeats, delivers commands, and does all of it again whenever the line breaks.
//
// While the coordinator is away nothing is lost: on each connection the agent first sends what
// `on_connected` gives, which is everything that the coordinator may have missed. Events given to
// Send() in between are dropped, since on_connected covers them. A coordinator that no longer
// answers is noticed by keepalive pings; until then, where very many events wait, only the newest
// step report of each rank does.
//
// While the worker holds jobs it obeys coordinators of its own cluster alone: the connection to
// another one, and one that sends another one's command, ends with FailedPrecondition, and the jobs
// stay as they are.
//
// Thread-safe. Callbacks run on the agent's threads, one command at a time.
#ifndef TESSERA_WORKER_AGENT_COORDINATOR_AGENT_H_
#define TESSERA_WORKER_AGENT_COORDINATOR_AGENT_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "net/transport_security.h"
#include "proto/coordinator.pb.h"
#include "worker/agent/cluster_name.h"

namespace tessera {

// As RegisterWorkerRequest.heard_start and heard_changes.
struct HeardJournal {
  uint64_t start = 0;
  int64_t changes = 0;
};

class CoordinatorAgent {
 public:
  struct Options {
    DialOptions coordinator;
    std::string worker_id;
    std::string key;          // Of this life, as RegisterWorkerRequest says.
    int64_t incarnation = 0;  // The life that it continues; 0: the coordinator assigns it.
    int num_devices = 1;
    std::string worker_address;  // Where this worker's service listens.
    // As RegisterWorkerRequest says:
    std::string data_host;
    int max_ranks_of_job = 0;
    std::string device;
    int64_t memory_bytes = 0;
    std::function<void(const v1::CoordinatorCommand&)> on_command;
    std::function<std::vector<v1::WorkerEvent>()> on_connected;
    std::function<v1::Heartbeat()> heartbeat;
    std::function<bool()> holds_jobs;
    std::string cluster;  // Of the jobs that it holds from the start; empty: it holds none.
    // It belongs to this cluster, as this incarnation, from now on, and has heard this. May be
    // null.
    std::function<void(const std::string& cluster, int64_t incarnation, const HeardJournal& heard)>
        on_registered;
    HeardJournal heard;  // Of that cluster's journal, before.
    // A ping so often, and the line is down if none is answered in time. The coordinator permits
    // one a second.
    absl::Duration keepalive_interval = absl::Seconds(10);
    absl::Duration keepalive_timeout = absl::Seconds(5);
  };
  explicit CoordinatorAgent(Options options);
  ~CoordinatorAgent();  // Stop().

  // Errors: ResourceExhausted  no thread can be made.
  absl::Status Start();
  // Ends the stream and joins; no callback runs after it.
  void Stop();
  // Sent if the line is up, else dropped (see above). Never blocks.
  void Send(const v1::WorkerEvent& event);
  bool connected() const;
  // When its loop, which connects and sends heartbeats, went round last. Of a coordinator that does
  // not answer that may be half a minute ago.
  absl::Time last_round() const;
  int64_t incarnation() const { return incarnation_.load(); }  // 0: none yet.
  // The cluster that this worker belongs to; empty: none yet.
  std::string cluster() const { return cluster_.name(); }

 private:
  class Connection;
  void Run();
  absl::Status RunOnce();
  absl::StatusOr<absl::Duration> Register(Connection* connection);
  absl::Status Stream(Connection* connection, absl::Duration heartbeat_interval);
  void WriteLoop(Connection* connection, absl::Duration heartbeat_interval);

  absl::Status CheckSender(const v1::CoordinatorCommand& command) const;

  const Options options_;
  ClusterName cluster_;
  std::atomic<int64_t> incarnation_;
  HeardJournal heard_;  // Of the thread's alone.
  std::thread thread_;
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_round_ ABSL_GUARDED_BY(mu_) = SteadyNow();
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ended_ ABSL_GUARDED_BY(mu_) = false;
  Connection* connection_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<v1::WorkerEvent> outbox_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_COORDINATOR_AGENT_H_
