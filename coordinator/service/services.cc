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
#include "coordinator/service/serve.h"
#include "job/field_limits.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {

grpc::Status JobsService::StreamedCreateJob(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::CreateJobRequest, v1::Job>* stream) {
  const auto create = [&](EnteredCall* entered, const v1::CreateJobRequest& request,
                          v1::Job* reply) -> absl::Status {
    absl::StatusOr<JobView> view = absl::InternalError("it was not created");
    const auto run = [&](const Gate::Caller& caller) -> absl::Status {
      ASSIGN_OR_RETURN(CreateJobEvent event, Decode(request));
      event.owner = caller.identity;
      event.by_operator = caller.is_operator;
      event.attach_key = RandomBytes(kAttachKeyBytes);
      view = host_->CreateJob(event);
      return view.status();
    };
    RETURN_IF_ERROR(
        gate_->Change({context, "CreateJob", JobId(request.job_id())}, Right::kCreate, run));
    RETURN_IF_ERROR(entered->TakeReplyTurn(view->spec_bytes));
    *reply = Encode(*view);
    reply->set_attach_key(view->attach_key);
    return absl::OkStatus();
  };
  return ServeUnary(*gate_, {context, "CreateJob"}, CallKind::kShort, stream, create,
                    kMaxMessageBytes);
}

grpc::Status JobsService::StreamedGetJob(
    grpc::ServerContext* context, grpc::ServerUnaryStreamer<v1::GetJobRequest, v1::Job>* stream) {
  const auto get = [&](EnteredCall* entered, const v1::GetJobRequest& request,
                       v1::Job* reply) -> absl::Status {
    const JobId job(request.job_id());
    ASSIGN_OR_RETURN(const Gate::Caller caller,
                     gate_->Admit({context, "GetJob", job}, Right::kRead));
    const absl::StatusOr<JobView> view = host_->GetJob(job);
    RETURN_IF_ERROR(Gate::CheckSame(view, caller));
    RETURN_IF_ERROR(entered->TakeReplyTurn(view->spec_bytes));
    *reply = Encode(*view);
    return absl::OkStatus();
  };
  return ServeUnary(*gate_, {context, "GetJob"}, CallKind::kShort, stream, get);
}

grpc::Status JobsService::StreamedListJobs(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::ListJobsRequest, v1::ListJobsResponse>* stream) {
  // Of a page: what a client takes in one message, and what the coordinator copies at a time.
  constexpr size_t kMaxPageJobs = 100, kMaxPageBytes = 1 << 20;
  const auto list = [&](EnteredCall* entered, const v1::ListJobsRequest& request,
                        v1::ListJobsResponse* reply) -> absl::Status {
    RETURN_IF_ERROR(gate_->Admit({context, "ListJobs"}, Right::kList).status());
    RETURN_IF_ERROR(entered->TakeReplyTurn(kMaxPageBytes));
    const auto views = host_->ListJobs(JobId(request.after_job_id()), kMaxPageJobs);
    size_t bytes = 0;
    for (const JobView& view : views) {
      if (bytes > kMaxPageBytes) break;
      *reply->add_jobs() = EncodeSummary(view);
      bytes += reply->jobs(reply->jobs_size() - 1).ByteSizeLong();
    }
    const auto num_sent = static_cast<size_t>(reply->jobs_size());
    if (num_sent == kMaxPageJobs || num_sent < views.size())
      reply->set_next_after_job_id(views[num_sent - 1].id.value());
    return absl::OkStatus();
  };
  return ServeUnary(*gate_, {context, "ListJobs"}, CallKind::kShort, stream, list);
}

grpc::Status JobsService::StreamedWatchJob(
    grpc::ServerContext* context, grpc::ServerSplitStreamer<v1::WatchJobRequest, v1::Job>* stream) {
  const auto watch = [&](EnteredCall* entered, const v1::WatchJobRequest& request) -> absl::Status {
    const JobId job(request.job_id());
    ASSIGN_OR_RETURN(const Gate::Caller caller,
                     gate_->Admit({context, "WatchJob", job}, Right::kRead));
    int64_t generation = 0;
    bool seen = false;
    while (true) {
      absl::StatusOr<JobView> view =
          host_->AwaitChange(job, &generation, [context] { return context->IsCancelled(); });
      if (seen && absl::IsNotFound(view.status())) return absl::OkStatus();
      if (absl::Status status = Gate::CheckSame(view, caller); !status.ok())
        return seen && view.ok() ? absl::OkStatus() : status;
      seen = true;
      RETURN_IF_ERROR(entered->TakeReplyTurn(view->spec_bytes));
      RETURN_IF_ERROR(entered->Write(stream, Encode(*view)));
      entered->EndReplyTurn();
    }
  };
  return ServeStream(*gate_, {context, "WatchJob"}, stream, watch);
}

grpc::Status JobsService::StreamedDeleteJob(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::DeleteJobRequest, v1::DeleteJobResponse>* stream) {
  const auto run = [&](EnteredCall*, const v1::DeleteJobRequest& request, v1::DeleteJobResponse*) {
    // The core looks at the owner: a deletion whose reply was lost is repeated when there is no
    // job.
    return gate_->Change({context, "DeleteJob", JobId(request.job_id())}, Right::kList,
                         [&](const Gate::Caller& caller) -> absl::Status {
                           ASSIGN_OR_RETURN(DeleteJobEvent event, Decode(request));
                           event.owner = caller.identity;
                           event.by_operator = caller.is_operator;
                           return host_->DeleteJob(event);
                         });
  };
  return ServeUnary(*gate_, {context, "DeleteJob"}, CallKind::kShort, stream, run);
}

grpc::Status MembershipService::StreamedRegisterWorker(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::RegisterWorkerRequest, v1::RegisterWorkerResponse>* stream) {
  const auto run = [&](EnteredCall*, const v1::RegisterWorkerRequest& request,
                       v1::RegisterWorkerResponse* reply) {
    return gate_->ChangeAsWorker(
        {context, "RegisterWorker"}, request.worker_id(), [&]() -> absl::Status {
          ASSIGN_OR_RETURN(const RegisterWorkerEvent event, Decode(request));
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
  };
  return ServeUnary(*gate_, {context, "RegisterWorker"}, CallKind::kOfWorker, stream, run);
}

grpc::Status MembershipService::Connect(grpc::ServerContext* context, Stream* stream) {
  return ToGrpcStatus(RunConnect(context, stream));
}

absl::Status MembershipService::RunConnect(grpc::ServerContext* context, Stream* stream) {
  ASSIGN_OR_RETURN(EnteredCall entered, gate_->Enter({context, "Connect"}, CallKind::kOfWorker));
  v1::WorkerEvent first;
  RETURN_IF_ERROR(
      ReadFirst(*gate_, {context, "Connect"}, &entered, stream, &first, kMaxMessageBytes));
  ASSIGN_OR_RETURN(const Sender sender, DecodeSender(first));
  RETURN_IF_ERROR(gate_->AdmitWorker({context, "Connect"}, first.worker_id()).status());
  RETURN_IF_ERROR(host_->CheckCluster(sender.worker, first.cluster_id()));
  auto outbox = std::make_shared<Outbox>([context] { context->TryCancel(); });
  if (absl::Status status = host_->Connect(sender, first.key(), outbox); !status.ok()) {
    outbox->Detach();
    return status;
  }
  entered.GiveUpPlace();
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
      writer.ok() ? ReadEvents(sender, std::move(first), stream) : writer.status();
  outbox->Detach();
  host_->Disconnect(sender.worker, outbox);
  if (writer.ok()) writer->join();
  return status;
}

grpc::Status MembershipService::StreamedListWorkers(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::ListWorkersRequest, v1::ListWorkersResponse>* stream) {
  const auto list = [&](EnteredCall* entered, const v1::ListWorkersRequest&,
                        v1::ListWorkersResponse* reply) -> absl::Status {
    RETURN_IF_ERROR(gate_->Admit({context, "ListWorkers"}, Right::kList).status());
    const auto views = host_->ListWorkers();
    RETURN_IF_ERROR(
        entered->TakeReplyTurn(static_cast<int64_t>(views.size() * sizeof(v1::WorkerInfo))));
    for (const CoordinatorHost::WorkerView& view : views) {
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
    return absl::OkStatus();
  };
  return ServeUnary(*gate_, {context, "ListWorkers"}, CallKind::kShort, stream, list);
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

grpc::Status CheckpointsService::StreamedRequestSave(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::RequestSaveRequest, v1::Save>* stream) {
  const auto run = [&](EnteredCall*, const v1::RequestSaveRequest& request,
                       v1::Save* reply) -> absl::Status {
    const JobId job(request.job_id());
    const auto save = [&](const Gate::Caller& caller) -> absl::Status {
      ASSIGN_OR_RETURN(RequestSaveEvent event, Decode(request));
      ASSIGN_OR_RETURN(event.form.root,
                       gate_->rules().SaveRootOf(caller.identity, event.form.path));
      return host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) -> absl::Status {
        RETURN_IF_ERROR(Gate::CheckSame(core.GetJob(job), caller));
        ASSIGN_OR_RETURN(const SaveView view, core.RequestSave(event, now, effects));
        *reply = Encode(job, view);
        return absl::OkStatus();
      });
    };
    return gate_->Change({context, "RequestSave", job}, Right::kChange, save);
  };
  return ServeUnary(*gate_, {context, "RequestSave"}, CallKind::kShort, stream, run);
}

grpc::Status CheckpointsService::StreamedGetSave(
    grpc::ServerContext* context, grpc::ServerUnaryStreamer<v1::GetSaveRequest, v1::Save>* stream) {
  const auto get = [&](EnteredCall*, const v1::GetSaveRequest& request,
                       v1::Save* reply) -> absl::Status {
    const JobId job(request.job_id());
    ASSIGN_OR_RETURN(const Gate::Caller caller,
                     gate_->Admit({context, "GetSave", job}, Right::kRead));
    const absl::StatusOr<SaveView> view = host_->GetSave(job, request.number());
    // A later creation never has a smaller number, so what was just seen was of this one.
    RETURN_IF_ERROR(Gate::CheckSame(host_->GetJob(job), caller));
    RETURN_IF_ERROR(view.status());
    *reply = Encode(job, *view);
    return absl::OkStatus();
  };
  return ServeUnary(*gate_, {context, "GetSave"}, CallKind::kShort, stream, get);
}

grpc::Status CheckpointsService::StreamedCancelSave(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::CancelSaveRequest, v1::Save>* stream) {
  const auto run = [&](EnteredCall*, const v1::CancelSaveRequest& request, v1::Save* reply) {
    const JobId job(request.job_id());
    const auto cancel = [&](const Gate::Caller& caller) {
      return host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) -> absl::Status {
        RETURN_IF_ERROR(Gate::CheckSame(core.GetJob(job), caller));
        ASSIGN_OR_RETURN(const SaveView view, core.CancelSave(job, request.number(), now, effects));
        *reply = Encode(job, view);
        return absl::OkStatus();
      });
    };
    return gate_->Change({context, "CancelSave", job}, Right::kChange, cancel);
  };
  return ServeUnary(*gate_, {context, "CancelSave"}, CallKind::kShort, stream, run);
}

grpc::Status CheckpointsService::StreamedListCheckpoints(
    grpc::ServerContext* context,
    grpc::ServerUnaryStreamer<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>* stream) {
  const auto list = [&](EnteredCall* entered, const v1::ListCheckpointsRequest& request,
                        v1::ListCheckpointsResponse* reply) -> absl::Status {
    const JobId job(request.job_id());
    ASSIGN_OR_RETURN(const Gate::Caller caller,
                     gate_->Admit({context, "ListCheckpoints", job}, Right::kRead));
    RETURN_IF_ERROR(entered->TakeReplyTurn(SaveLog::kMaxEndedTextBytes));
    const auto views = host_->ListSaves(job);
    RETURN_IF_ERROR(Gate::CheckSame(host_->GetJob(job), caller));
    RETURN_IF_ERROR(views.status());
    for (const SaveView& view : *views) *reply->add_saves() = Encode(job, view);
    return absl::OkStatus();
  };
  return ServeUnary(*gate_, {context, "ListCheckpoints"}, CallKind::kShort, stream, list);
}

}  // namespace tessera::coordinator
