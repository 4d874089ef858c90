// The gRPC services: ask the gate, decode, call the host, encode. Thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SERVICES_H_
#define TESSERA_COORDINATOR_SERVICE_SERVICES_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/serve.h"
#include "proto/coordinator.pb.h"
#include "proto/saves.pb.h"

namespace tessera::coordinator {

class JobsService {
 public:
  JobsService(CoordinatorHost* host, const Gate* gate) : host_(host), gate_(gate) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status Create(ServedCall* call, v1::CreateJobRequest request, v1::Job* reply);
  absl::Status Get(ServedCall* call, const v1::GetJobRequest& request, v1::Job* reply);
  absl::Status GetLayout(ServedCall* call, const v1::GetLayoutRequest& request,
                         v1::JobLayout* reply);
  absl::Status List(ServedCall* call, const v1::ListJobsRequest& request,
                    v1::ListJobsResponse* reply);
  absl::Status Watch(CallStream<v1::WatchJobRequest, v1::Job>* stream, v1::WatchJobRequest request);
  absl::Status Delete(ServedCall* call, const v1::DeleteJobRequest& request,
                      v1::DeleteJobResponse* reply);

  CoordinatorHost* const host_;
  const Gate* const gate_;
};

class MembershipService {
 public:
  MembershipService(CoordinatorHost* host, const Gate* gate, absl::Duration heartbeat_interval,
                    absl::Duration worker_timeout)
      : host_(host),
        gate_(gate),
        heartbeat_interval_(heartbeat_interval),
        worker_timeout_(worker_timeout) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  using Stream = CallStream<v1::WorkerEvent, v1::CoordinatorCommand>;

  absl::Status Register(ServedCall* call, const v1::RegisterWorkerRequest& request,
                        v1::RegisterWorkerResponse* reply);
  // Reads on this thread; one more thread writes.
  absl::Status Connect(Stream* stream, v1::WorkerEvent first);
  absl::Status ListWorkers(ServedCall* call, const v1::ListWorkersRequest& request,
                           v1::ListWorkersResponse* reply);
  absl::Status ReadEvents(const Sender& sender, const std::shared_ptr<Outbox>& outbox,
                          v1::WorkerEvent first, Stream* stream);

  CoordinatorHost* const host_;
  const Gate* const gate_;
  const absl::Duration heartbeat_interval_;
  const absl::Duration worker_timeout_;
};

class CheckpointsService {
 public:
  CheckpointsService(CoordinatorHost* host, const Gate* gate) : host_(host), gate_(gate) {}
  void AddTo(CallServer* calls);  // Which this outlives.

 private:
  absl::Status RequestSave(ServedCall* call, const v1::RequestSaveRequest& request,
                           v1::Save* reply);
  absl::Status GetSave(ServedCall* call, const v1::GetSaveRequest& request, v1::Save* reply);
  absl::Status CancelSave(ServedCall* call, const v1::CancelSaveRequest& request, v1::Save* reply);
  absl::Status List(ServedCall* call, const v1::ListCheckpointsRequest& request,
                    v1::ListCheckpointsResponse* reply);

  CoordinatorHost* const host_;
  const Gate* const gate_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVICES_H_
