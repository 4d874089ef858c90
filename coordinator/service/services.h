// The gRPC services: ask the gate, decode, call the host, encode. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SERVICES_H_
#define TESSERA_COORDINATOR_SERVICE_SERVICES_H_

#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/saves.grpc.pb.h"

namespace tessera::coordinator {

class JobsService : public v1::Jobs::StreamedService {
 public:
  JobsService(CoordinatorHost* host, const Gate* gate) : host_(host), gate_(gate) {}

  grpc::Status StreamedCreateJob(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::CreateJobRequest, v1::Job>* stream) override;
  grpc::Status StreamedGetJob(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::GetJobRequest, v1::Job>* stream) override;
  grpc::Status StreamedListJobs(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::ListJobsRequest, v1::ListJobsResponse>* stream) override;
  grpc::Status StreamedWatchJob(
      grpc::ServerContext* context,
      grpc::ServerSplitStreamer<v1::WatchJobRequest, v1::Job>* stream) override;
  grpc::Status StreamedDeleteJob(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::DeleteJobRequest, v1::DeleteJobResponse>* stream) override;

 private:
  CoordinatorHost* const host_;
  const Gate* const gate_;
};

class MembershipService : public v1::Membership::StreamedService {
 public:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorCommand, v1::WorkerEvent>;

  MembershipService(CoordinatorHost* host, const Gate* gate, absl::Duration heartbeat_interval,
                    absl::Duration worker_timeout)
      : host_(host),
        gate_(gate),
        heartbeat_interval_(heartbeat_interval),
        worker_timeout_(worker_timeout) {}

  grpc::Status StreamedRegisterWorker(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::RegisterWorkerRequest, v1::RegisterWorkerResponse>* stream)
      override;
  // Reads on this thread; one more thread writes.
  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status StreamedListWorkers(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::ListWorkersRequest, v1::ListWorkersResponse>* stream) override;

 private:
  absl::Status RunConnect(grpc::ServerContext* context, Stream* stream);
  absl::Status ReadEvents(const Sender& sender, v1::WorkerEvent first, Stream* stream);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  const absl::Duration heartbeat_interval_;
  const absl::Duration worker_timeout_;
};

class CheckpointsService : public v1::Checkpoints::StreamedService {
 public:
  CheckpointsService(CoordinatorHost* host, const Gate* gate) : host_(host), gate_(gate) {}

  grpc::Status StreamedRequestSave(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::RequestSaveRequest, v1::Save>* stream) override;
  grpc::Status StreamedGetSave(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::GetSaveRequest, v1::Save>* stream) override;
  grpc::Status StreamedCancelSave(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::CancelSaveRequest, v1::Save>* stream) override;
  grpc::Status StreamedListCheckpoints(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>* stream)
      override;

 private:
  CoordinatorHost* const host_;
  const Gate* const gate_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVICES_H_
