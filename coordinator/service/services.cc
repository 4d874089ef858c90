#include "coordinator/service/services.h"

#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "coordinator/service/field_checks.h"
#include "coordinator/service/save_codec.h"
#include "job/field_limits.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {

grpc::Status JobsService::CreateJob(grpc::ServerContext* context,
                                    const v1::CreateJobRequest* request, v1::Job* reply) {
  return gate_->Change({context, "CreateJob", JobId(request->job_id())}, Right::kCreate,
                       [&](const Gate::Caller& caller) -> absl::Status {
                         ASSIGN_OR_RETURN(CreateJobEvent event, Decode(*request));
                         event.owner = caller.identity;
                         event.by_operator = caller.is_operator;
                         event.attach_key = RandomBytes(kAttachKeyBytes);
                         ASSIGN_OR_RETURN(const JobView view, host_->CreateJob(event));
                         *reply = Encode(view);
                         reply->set_attach_key(view.attach_key);
                         return absl::OkStatus();
                       });
}

grpc::Status JobsService::GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                                 v1::Job* reply) {
  const JobId job(request->job_id());
  const auto caller = gate_->Admit({context, "GetJob", job}, Right::kRead);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<JobView> view = host_->GetJob(job);
  const absl::Status status = Gate::CheckSame(view, *caller);
  if (status.ok()) *reply = Encode(*view);
  return ToGrpcStatus(status);
}

grpc::Status JobsService::ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                                   v1::ListJobsResponse* reply) {
  // Of a page: what a client takes in one message, and what the coordinator copies at a time.
  constexpr size_t kMaxPageJobs = 100, kMaxPageBytes = 1 << 20;
  const auto caller = gate_->Admit({context, "ListJobs"}, Right::kList);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const auto views = host_->ListJobs(JobId(request->after_job_id()), kMaxPageJobs);
  size_t bytes = 0;
  for (const JobView& view : views) {
    if (bytes > kMaxPageBytes) break;
    *reply->add_jobs() = EncodeSummary(view);
    bytes += reply->jobs(reply->jobs_size() - 1).ByteSizeLong();
  }
  const auto num_sent = static_cast<size_t>(reply->jobs_size());
  if (num_sent == kMaxPageJobs || num_sent < views.size())
    reply->set_next_after_job_id(views[num_sent - 1].id.value());
  return grpc::Status::OK;
}

grpc::Status JobsService::WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                                   grpc::ServerWriter<v1::Job>* writer) {
  const JobId job(request->job_id());
  const auto caller = gate_->Admit({context, "WatchJob", job}, Right::kRead);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  int64_t generation = 0;
  bool seen = false;
  while (true) {
    absl::StatusOr<JobView> view =
        host_->AwaitChange(job, &generation, [context] { return context->IsCancelled(); });
    if (seen && absl::IsNotFound(view.status())) return grpc::Status::OK;
    if (absl::Status status = Gate::CheckSame(view, *caller); !status.ok())
      return seen && view.ok() ? grpc::Status::OK : ToGrpcStatus(status);
    seen = true;
    if (!writer->Write(Encode(*view))) return grpc::Status::CANCELLED;
  }
}

grpc::Status JobsService::DeleteJob(grpc::ServerContext* context,
                                    const v1::DeleteJobRequest* request, v1::DeleteJobResponse*) {
  // The core looks at the owner: a deletion whose reply was lost is repeated when there is no job.
  return gate_->Change({context, "DeleteJob", JobId(request->job_id())}, Right::kList,
                       [&](const Gate::Caller& caller) -> absl::Status {
                         ASSIGN_OR_RETURN(DeleteJobEvent event, Decode(*request));
                         event.owner = caller.identity;
                         event.by_operator = caller.is_operator;
                         return host_->DeleteJob(event);
                       });
}

grpc::Status MembershipService::RegisterWorker(grpc::ServerContext* context,
                                               const v1::RegisterWorkerRequest* request,
                                               v1::RegisterWorkerResponse* reply) {
  return gate_->ChangeAsWorker(
      {context, "RegisterWorker"}, request->worker_id(), [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const RegisterWorkerEvent event, Decode(*request));
        ASSIGN_OR_RETURN(const Incarnation incarnation, host_->RegisterWorker(event));
        reply->set_incarnation(incarnation.value());
        reply->set_heartbeat_interval_ms(absl::ToInt64Milliseconds(heartbeat_interval_));
        reply->set_worker_timeout_ms(absl::ToInt64Milliseconds(worker_timeout_));
        reply->set_cluster_id(host_->cluster());
        const HeardJournal heard = host_->ToHear();
        reply->set_start(heard.start);
        reply->set_changes(heard.changes);
        return absl::OkStatus();
      });
}

grpc::Status MembershipService::Connect(grpc::ServerContext* context, Stream* stream) {
  if (absl::Status status = gate_->CheckKnown({context, "Connect"}); !status.ok())
    return ToGrpcStatus(status);
  v1::WorkerEvent first;
  if (!stream->Read(&first)) {
    return ToGrpcStatus(absl::InvalidArgumentError("the stream ended before its first message"));
  }
  const absl::StatusOr<Sender> sender = DecodeSender(first);
  if (!sender.ok()) return ToGrpcStatus(sender.status());
  const auto caller = gate_->AdmitWorker({context, "Connect"}, first.worker_id());
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  if (absl::Status status = host_->CheckCluster(sender->worker, first.cluster_id()); !status.ok())
    return ToGrpcStatus(status);
  auto outbox = std::make_shared<Outbox>([context] { context->TryCancel(); });
  if (absl::Status status = host_->Connect(*sender, first.key(), outbox); !status.ok()) {
    outbox->Detach();
    return ToGrpcStatus(status);
  }
  absl::StatusOr<std::thread> writer = StartThread("a worker's stream", [&] {
    while (std::optional<Command> command = outbox->Pop()) {
      v1::CoordinatorCommand encoded = Encode(*command);
      encoded.set_cluster_id(host_->cluster());
      encoded.set_changes(host_->ToHear().changes);
      if (encoded.has_prepare()) {
        v1::Job* job = encoded.mutable_prepare()->mutable_job();
        for (std::string& root : gate_->rules().SaveRootsOf(job->owner()))
          job->add_save_roots(std::move(root));
      }
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

grpc::Status MembershipService::ListWorkers(grpc::ServerContext* context,
                                            const v1::ListWorkersRequest*,
                                            v1::ListWorkersResponse* reply) {
  const auto caller = gate_->Admit({context, "ListWorkers"}, Right::kList);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
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
    worker->set_memory_bytes(view.member.memory_bytes);
    worker->set_claimed_memory_bytes(view.claimed_bytes);
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

grpc::Status CheckpointsService::RequestSave(grpc::ServerContext* context,
                                             const v1::RequestSaveRequest* request,
                                             v1::Save* reply) {
  const JobId job(request->job_id());
  return gate_->Change(
      {context, "RequestSave", job}, Right::kChange,
      [&](const Gate::Caller& caller) -> absl::Status {
        ASSIGN_OR_RETURN(RequestSaveEvent event, Decode(*request));
        ASSIGN_OR_RETURN(event.form.root,
                         gate_->rules().SaveRootOf(caller.identity, event.form.path));
        return host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) -> absl::Status {
          RETURN_IF_ERROR(Gate::CheckSame(core.GetJob(job), caller));
          ASSIGN_OR_RETURN(const SaveView view, core.RequestSave(event, now, effects));
          *reply = Encode(job, view);
          return absl::OkStatus();
        });
      });
}

grpc::Status CheckpointsService::GetSave(grpc::ServerContext* context,
                                         const v1::GetSaveRequest* request, v1::Save* reply) {
  const JobId job(request->job_id());
  const auto caller = gate_->Admit({context, "GetSave", job}, Right::kRead);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<SaveView> view = host_->GetSave(job, request->number());
  // A later creation never has a smaller number, so what was just seen was of this one.
  if (absl::Status status = Gate::CheckSame(host_->GetJob(job), *caller); !status.ok())
    return ToGrpcStatus(status);
  if (view.ok()) *reply = Encode(job, *view);
  return ToGrpcStatus(view.status());
}

grpc::Status CheckpointsService::CancelSave(grpc::ServerContext* context,
                                            const v1::CancelSaveRequest* request, v1::Save* reply) {
  const JobId job(request->job_id());
  return gate_->Change(
      {context, "CancelSave", job}, Right::kChange, [&](const Gate::Caller& caller) {
        return host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) -> absl::Status {
          RETURN_IF_ERROR(Gate::CheckSame(core.GetJob(job), caller));
          ASSIGN_OR_RETURN(const SaveView view,
                           core.CancelSave(job, request->number(), now, effects));
          *reply = Encode(job, view);
          return absl::OkStatus();
        });
      });
}

grpc::Status CheckpointsService::ListCheckpoints(grpc::ServerContext* context,
                                                 const v1::ListCheckpointsRequest* request,
                                                 v1::ListCheckpointsResponse* reply) {
  const JobId job(request->job_id());
  const auto caller = gate_->Admit({context, "ListCheckpoints", job}, Right::kRead);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const auto views = host_->ListSaves(job);
  if (absl::Status status = Gate::CheckSame(host_->GetJob(job), *caller); !status.ok())
    return ToGrpcStatus(status);
  if (!views.ok()) return ToGrpcStatus(views.status());
  for (const SaveView& view : *views) *reply->add_saves() = Encode(job, view);
  return grpc::Status::OK;
}

}  // namespace tessera::coordinator
