#include "coordinator/service/services.h"

#include <memory>
#include <thread>
#include <utility>

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "coordinator/service/field_checks.h"
#include "coordinator/service/save_codec.h"
#include "net/caller_version.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {
namespace {

// Encodes the view into `reply`, or gives the error.
grpc::Status Reply(const absl::StatusOr<JobView>& view, v1::Job* reply) {
  if (view.ok()) *reply = Encode(*view);
  return ToGrpcStatus(view.status());
}

}  // namespace

grpc::Status JobsService::CreateJob(grpc::ServerContext* context,
                                    const v1::CreateJobRequest* request, v1::Job* reply) {
  if (absl::Status status = CheckCaller(*context); !status.ok()) return ToGrpcStatus(status);
  absl::StatusOr<CreateJobEvent> event = Decode(*request);
  if (!event.ok()) return ToGrpcStatus(event.status());
  return Reply(host_->CreateJob(*event), reply);
}

grpc::Status JobsService::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                 v1::Job* reply) {
  return Reply(host_->GetJob(JobId(request->job_id())), reply);
}

grpc::Status JobsService::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                                   v1::ListJobsResponse* reply) {
  for (const JobView& view : host_->ListJobs()) *reply->add_jobs() = EncodeSummary(view);
  return grpc::Status::OK;
}

grpc::Status JobsService::WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                                   grpc::ServerWriter<v1::Job>* writer) {
  int64_t generation = 0;
  bool seen = false;
  while (true) {
    absl::StatusOr<JobView> view = host_->AwaitChange(JobId(request->job_id()), &generation,
                                                      [context] { return context->IsCancelled(); });
    if (seen && absl::IsNotFound(view.status())) return grpc::Status::OK;
    if (!view.ok()) return ToGrpcStatus(view.status());
    seen = true;
    if (!writer->Write(Encode(*view))) return grpc::Status::CANCELLED;
  }
}

grpc::Status JobsService::DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request,
                                    v1::DeleteJobResponse*) {
  absl::StatusOr<DeleteJobEvent> event = Decode(*request);
  return ToGrpcStatus(event.ok() ? host_->DeleteJob(*event) : event.status());
}

grpc::Status MembershipService::RegisterWorker(grpc::ServerContext* context,
                                               const v1::RegisterWorkerRequest* request,
                                               v1::RegisterWorkerResponse* reply) {
  if (absl::Status status = CheckCaller(*context); !status.ok()) return ToGrpcStatus(status);
  absl::StatusOr<RegisterWorkerEvent> event = Decode(*request);
  if (!event.ok()) return ToGrpcStatus(event.status());
  reply->set_heartbeat_interval_ms(absl::ToInt64Milliseconds(heartbeat_interval_));
  reply->set_worker_timeout_ms(absl::ToInt64Milliseconds(worker_timeout_));
  reply->set_cluster_id(host_->cluster());
  return ToGrpcStatus(host_->RegisterWorker(*event));
}

grpc::Status MembershipService::Connect(grpc::ServerContext* context, Stream* stream) {
  if (absl::Status status = CheckCaller(*context); !status.ok()) return ToGrpcStatus(status);
  v1::WorkerEvent first;
  if (!stream->Read(&first)) {
    return ToGrpcStatus(absl::InvalidArgumentError("the stream ended before its first message"));
  }
  const absl::StatusOr<Sender> sender = DecodeSender(first);
  if (!sender.ok()) return ToGrpcStatus(sender.status());
  if (absl::Status status = host_->CheckCluster(sender->worker, first.cluster_id()); !status.ok())
    return ToGrpcStatus(status);
  auto outbox = std::make_shared<Outbox>([context] { context->TryCancel(); });
  if (absl::Status status = host_->Connect(*sender, outbox); !status.ok()) {
    outbox->Detach();
    return ToGrpcStatus(status);
  }
  absl::StatusOr<std::thread> writer = StartThread("a worker's stream", [&] {
    while (std::optional<Command> command = outbox->Pop()) {
      v1::CoordinatorCommand encoded = Encode(*command);
      encoded.set_cluster_id(host_->cluster());
      if (!stream->Write(encoded)) {
        context->TryCancel();
        return;
      }
    }
  });
  const absl::Status status =
      writer.ok() ? ReadEvents(*sender, std::move(first), stream) : writer.status();
  outbox->Detach();
  host_->Disconnect(sender->worker, outbox);
  if (writer.ok()) writer->join();
  return ToGrpcStatus(status);
}

grpc::Status MembershipService::ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                                            v1::ListWorkersResponse* reply) {
  for (const CoordinatorHost::WorkerView& view : host_->ListWorkers()) {
    v1::WorkerInfo* worker = reply->add_workers();
    worker->set_worker_id(view.id.value());
    worker->set_address(view.member.address);
    worker->set_data_host(view.member.data_host);
    worker->set_max_ranks_of_job(view.member.max_ranks_of_job);
    worker->set_device(view.member.device);
    worker->set_num_devices(view.member.num_devices);
    worker->set_incarnation(view.member.incarnation.value());
    worker->set_lost(view.member.lost);
    worker->set_silent_ms(absl::ToInt64Milliseconds(view.silent));
  }
  return grpc::Status::OK;
}

absl::Status MembershipService::ReadEvents(const Sender& sender, v1::WorkerEvent first,
                                           Stream* stream) {
  v1::WorkerEvent event = std::move(first);
  // The first message may carry nothing but the sender's name.
  bool has_event = event.event_case() != v1::WorkerEvent::EVENT_NOT_SET;
  do {
    if (has_event) {
      ASSIGN_OR_RETURN(const StreamEvent decoded, Decode(event));
      RETURN_IF_ERROR(host_->OnStreamEvent(sender, decoded));
    }
    has_event = true;
  } while (stream->Read(&event));
  return absl::OkStatus();
}

namespace {

grpc::Status Reply(const std::string& job, const absl::StatusOr<SaveView>& view, v1::Save* reply) {
  if (view.ok()) *reply = Encode(JobId(job), *view);
  return ToGrpcStatus(view.status());
}

}  // namespace

grpc::Status CheckpointsService::RequestSave(grpc::ServerContext*,
                                             const v1::RequestSaveRequest* request,
                                             v1::Save* reply) {
  const absl::StatusOr<RequestSaveEvent> event = Decode(*request);
  if (!event.ok()) return ToGrpcStatus(event.status());
  return Reply(request->job_id(), host_->RequestSave(*event), reply);
}

grpc::Status CheckpointsService::GetSave(grpc::ServerContext*, const v1::GetSaveRequest* request,
                                         v1::Save* reply) {
  return Reply(request->job_id(), host_->GetSave(JobId(request->job_id()), request->number()),
               reply);
}

grpc::Status CheckpointsService::CancelSave(grpc::ServerContext*,
                                            const v1::CancelSaveRequest* request, v1::Save* reply) {
  return Reply(request->job_id(), host_->CancelSave(JobId(request->job_id()), request->number()),
               reply);
}

grpc::Status CheckpointsService::ListCheckpoints(grpc::ServerContext*,
                                                 const v1::ListCheckpointsRequest* request,
                                                 v1::ListCheckpointsResponse* reply) {
  const JobId job(request->job_id());
  const auto views = host_->ListSaves(job);
  if (!views.ok()) return ToGrpcStatus(views.status());
  for (const SaveView& view : *views) *reply->add_saves() = Encode(job, view);
  return grpc::Status::OK;
}

grpc::Status RendezvousService::PutValue(grpc::ServerContext*, const v1::PutValueRequest* request,
                                         v1::PutValueResponse*) {
  absl::StatusOr<PutValueEvent> event = Decode(*request);
  return ToGrpcStatus(event.ok() ? host_->PutValue(*event) : event.status());
}

grpc::Status RendezvousService::GetValue(grpc::ServerContext* context,
                                         const v1::GetValueRequest* request,
                                         v1::GetValueResponse* reply) {
  absl::StatusOr<ValueKey> key = Decode(*request);
  if (!key.ok()) return ToGrpcStatus(key.status());
  absl::StatusOr<std::string> value =
      host_->AwaitValue(*key, [context] { return context->IsCancelled(); });
  if (value.ok()) reply->set_value(*std::move(value));
  return ToGrpcStatus(value.status());
}

}  // namespace tessera::coordinator
