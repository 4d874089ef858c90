#include "tessera/local_cluster.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/unique_fd.h"
#include "coordinator/service/server.h"
#include "worker/service/worker_server.h"

namespace tessera {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(30);

class LocalClusterImpl : public LocalCluster {
 public:
  ~LocalClusterImpl() override {
    // Workers first: they report to the coordinator as they end.
    workers_.clear();
    coordinator_.reset();
    for (const std::string& folder : socket_folders_) rmdir(folder.c_str());
    if (!folder_.empty()) rmdir(folder_.c_str());
  }

  absl::Status Open(const Options& options) {
    std::string folder = "/tmp/tessera-local-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, "make a folder in /tmp");
    folder_ = folder;
    coordinator::CoordinatorServer::Options coordinator;
    coordinator.listen_address = "127.0.0.1:0";
    coordinator.journal_path = options.journal_path;
    coordinator.heartbeat_interval = absl::Milliseconds(100);
    coordinator.restart_delay = absl::Milliseconds(1);
    ASSIGN_OR_RETURN(coordinator_, coordinator::CoordinatorServer::Start(coordinator));
    WorkerServer::Options worker;
    worker.coordinator_address = coordinator_address();
    worker.num_devices = options.num_devices;
    worker.executor_binary = options.executor_binary;
    worker.executor_flags = options.executor_flags;
    worker.device_memory = options.device_memory;
    if (options.machine != nullptr) worker.machine = *options.machine;
    for (int i = 0; i < options.num_workers; ++i) {
      const bool alone = options.num_workers == 1;
      worker.worker_id = alone ? "local" : absl::StrCat("local", i);
      // Ranks of one worker share memory, so only several workers need connections.
      worker.data_host = alone ? "" : "127.0.0.1";
      worker.state_listen_address = "127.0.0.1:0";
      worker.socket_dir = alone ? folder_ : absl::StrCat(folder_, "/", i);
      if (!alone) socket_folders_.push_back(worker.socket_dir);
      if (i == options.num_workers - options.num_workers_without_gpu)
        worker.device_memory = nullptr;
      ASSIGN_OR_RETURN(auto started, WorkerServer::Start(worker));
      workers_.push_back(std::move(started));
    }
    return AwaitWorkers();
  }

  std::string coordinator_address() const override {
    return absl::StrCat("127.0.0.1:", coordinator_->port());
  }
  std::string worker_address(int worker) const override { return workers_[worker]->address(); }
  void KillExecutorForTest(const std::string& job_id, int rank) override {
    for (const auto& worker : workers_) worker->KillExecutorForTest(job_id, rank);
  }

 private:
  // So that a job that is made then is placed on the same ones in each run.
  absl::Status AwaitWorkers() const {
    const absl::Time deadline = SteadyNow() + kConnectTimeout;
    for (size_t i = 0; i < workers_.size(); ++i) {
      while (!workers_[i]->connected()) {
        if (SteadyNow() >= deadline) {
          return absl::DeadlineExceededError(absl::StrCat("worker ", i, " of the local cluster ",
                                                          "did not reach its coordinator within ",
                                                          absl::FormatDuration(kConnectTimeout)));
        }
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    return absl::OkStatus();
  }

  std::string folder_;
  std::unique_ptr<coordinator::CoordinatorServer> coordinator_;
  std::vector<std::string> socket_folders_;
  std::vector<std::unique_ptr<WorkerServer>> workers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const Options& options) {
  auto cluster = std::make_unique<LocalClusterImpl>();
  RETURN_IF_ERROR(cluster->Open(options));
  return cluster;
}

}  // namespace tessera
