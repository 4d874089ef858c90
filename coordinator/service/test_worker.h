// A worker for tests that speaks the real protocol over real gRPC and does exactly what the test
// says. Thread-compatible; a thread of its own reads the commands.
#ifndef TESSERA_COORDINATOR_SERVICE_TEST_WORKER_H_
#define TESSERA_COORDINATOR_SERVICE_TEST_WORKER_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "proto/coordinator.grpc.pb.h"

namespace tessera::coordinator {

class TestWorker {
 public:
  using CommandCase = v1::CoordinatorCommand::CommandCase;

  TestWorker(std::shared_ptr<grpc::Channel> channel, std::string id, int64_t incarnation = 1);
  ~TestWorker() { Disconnect(); }

  grpc::Status Register(int num_devices);
  // Opens the stream and names the sender.
  void Connect();
  // Ends the stream; the status that it ended with.
  grpc::Status Disconnect();
  // Waits until the coordinator ends the stream.
  grpc::Status AwaitEnd();

  // It holds this job already, as a worker does that was cut off.
  void Hold(const std::string& job, int64_t generation);
  void Heartbeat();
  void HeartbeatAt(const std::string& job, int64_t epoch, int rank, int64_t step, int64_t sequence);
  void Prepared(const std::string& job, int64_t epoch, int64_t decided_step);
  void Announce(const std::string& job, int64_t epoch, int rank, int64_t step, int64_t sequence,
                const std::string& operation, int64_t unit);
  void ReportStep(const std::string& job, int64_t epoch, int rank, int64_t step, uint64_t hash = 7);
  void Fail(const std::string& job, int64_t epoch, int rank, const std::string& reason);

  // The next command of this kind; others before it are dropped. Fails the test after 10 s.
  v1::CoordinatorCommand Await(CommandCase kind);
  // How many commands have come that no Await took.
  int NumCommands();

 private:
  void Send(v1::WorkerEvent event);
  // Of the job that this worker was asked to prepare last.
  int64_t GenerationOf(const std::string& job);

  const std::string id_;
  const int64_t incarnation_;
  const std::string key_;
  std::unique_ptr<v1::Membership::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerEvent, v1::CoordinatorCommand>> stream_;
  std::thread reader_;
  absl::Mutex mu_;
  std::deque<v1::CoordinatorCommand> commands_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t> generations_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// A job of `world_size` ranks with a root unit (root.w) and units "u0", "u1", ... of four
// parameters each.
v1::CreateJobRequest MakeCreateJob(const std::string& request_id, const std::string& job_id,
                                   int world_size, int num_units = 3);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_TEST_WORKER_H_
