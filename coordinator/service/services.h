// The gRPC services: ask the gate, decode, call the host, encode. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SERVICES_H_
#define TESSERA_COORDINATOR_SERVICE_SERVICES_H_

#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/saves.grpc.pb.h"

namespace tessera::coordinator {

class JobsService : public v1::Jobs::Service {
 public:
  JobsService(CoordinatorHost* host, const Gate* gate) : host_(host), gate_(gate) {}

  grpc::Status CreateJob(grpc::ServerContext* context, const v1::CreateJobRequest* request,
                         v1::Job* reply) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::Job* reply) override;
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* reply) override;
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::Job>* writer) override;
  grpc::Status DeleteJob(grpc::ServerContext* context, const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse* reply) override;

 private:
  CoordinatorHost* const host_;
  const Gate* const gate_;
};

class MembershipService : public v1::Membership::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorCommand, v1::WorkerEvent>;

  MembershipService(CoordinatorHost* host, const Gate* gate, absl::Duration heartbeat_interval,
                    absl::Duration worker_timeout)
      : host_(host),
        gate_(gate),
        heartbeat_interval_(heartbeat_interval),
        worker_timeout_(worker_timeout) {}

  grpc::Status RegisterWorker(grpc::ServerContext* context,
                              const v1::RegisterWorkerRequest* request,
                              v1::RegisterWorkerResponse* reply) override;
  // Reads on this thread; one more thread writes.
  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status ListWorkers(grpc::ServerContext* context, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* reply) override;

 private:
  absl::Status ReadEvents(const Sender& sender, v1::WorkerEvent first, Stream* stream);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  const absl::Duration heartbeat_interval_;
  const absl::Duration worker_timeout_;
};

class CheckpointsService : public v1::Checkpoints::Service {
 public:
  CheckpointsService(CoordinatorHost* host, const Gate* gate) : host_(host), gate_(gate) {}

  grpc::Status RequestSave(grpc::ServerContext* context, const v1::RequestSaveRequest* request,
                           v1::Save* reply) override;
  grpc::Status GetSave(grpc::ServerContext* context, const v1::GetSaveRequest* request,
                       v1::Save* reply) override;
  grpc::Status CancelSave(grpc::ServerContext* context, const v1::CancelSaveRequest* request,
                          v1::Save* reply) override;
  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* reply) override;

 private:
  CoordinatorHost* const host_;
  const Gate* const gate_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVICES_H_
