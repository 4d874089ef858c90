#include "client/cpp/local_cluster.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "coordinator/service/server.h"
#include "worker/service/worker_server.h"

namespace tessera {
namespace {

class LocalClusterImpl : public LocalCluster {
 public:
  ~LocalClusterImpl() override {
    worker_.reset();
    coordinator_.reset();
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
    ASSIGN_OR_RETURN(coordinator_, coordinator::CoordinatorServer::Start(coordinator));
    WorkerServer::Options worker;
    worker.worker_id = "local";
    worker.coordinator_address = coordinator_address();
    worker.num_devices = options.num_devices;
    worker.socket_dir = folder_;
    worker.executor_binary = options.executor_binary;
    worker.executor_flags = options.executor_flags;
    ASSIGN_OR_RETURN(worker_, WorkerServer::Start(worker));
    return absl::OkStatus();
  }

  std::string coordinator_address() const override {
    return absl::StrCat("127.0.0.1:", coordinator_->port());
  }
  std::string worker_address() const override { return worker_->address(); }
  void KillExecutorForTest(const std::string& job_id, int rank) override {
    worker_->KillExecutorForTest(job_id, rank);
  }

 private:
  std::string folder_;
  std::unique_ptr<coordinator::CoordinatorServer> coordinator_;
  std::unique_ptr<WorkerServer> worker_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const Options& options) {
  auto cluster = std::make_unique<LocalClusterImpl>();
  RETURN_IF_ERROR(cluster->Open(options));
  return cluster;
}

}  // namespace tessera
