#include "coordinator/service/services.h"

#include <memory>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "coordinator/service/field_checks.h"
#include "coordinator/service/save_codec.h"
#include "job/field_limits.h"
#include "job/job_layout.h"
#include "job/layout_codec.h"

namespace tessera::coordinator {
namespace {

// How long the last command to a worker may take whose stream ends.
constexpr absl::Duration kLastWriteTimeout = absl::Seconds(5);

}  // namespace

void JobsService::AddTo(CallServer* calls) {
  const std::string jobs = "tessera.v1.Jobs/";
  AddUnary(calls, jobs + "CreateJob", "CreateJob", CallKind::kShort, this, &JobsService::Create,
           kMaxMessageBytes);
  AddUnary(calls, jobs + "GetJob", "GetJob", CallKind::kShort, this, &JobsService::Get);
  AddUnary(calls, jobs + "GetLayout", "GetLayout", CallKind::kShort, this, &JobsService::GetLayout);
  AddUnary(calls, jobs + "ListJobs", "ListJobs", CallKind::kShort, this, &JobsService::List);
  AddStream(calls, jobs + "WatchJob", "WatchJob", CallKind::kWaiting, this, &JobsService::Watch);
  AddUnary(calls, jobs + "DeleteJob", "DeleteJob", CallKind::kShort, this, &JobsService::Delete);
}

absl::Status JobsService::Create(ServedCall* call, v1::CreateJobRequest request, v1::Job* reply) {
  absl::StatusOr<JobView> view = absl::InternalError("it was not created");
  const auto run = [&](const Gate::Caller& caller) -> absl::Status {
    ASSIGN_OR_RETURN(CreateJobEvent event, Decode(std::move(request)));
    event.owner = caller.identity;
    event.by_operator = caller.is_operator;
    // The core takes it only for a new job, so a retry changes no key.
    event.attach_key = RandomBytes(kAttachKeyBytes);
    view = host_->CreateJob(event);
    return view.status();
  };
  RETURN_IF_ERROR(
      gate_->Change({call->context(), "CreateJob", JobId(request.job_id())}, Right::kCreate, run));
  call->MakeReplyInTurn(view->spec_bytes, [view = *std::move(view), reply] {
    *reply = Encode(view);
    // Not in Encode, whose jobs readers see too.
    reply->set_attach_key(view.attach_key);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status JobsService::Get(ServedCall* call, const v1::GetJobRequest& request, v1::Job* reply) {
  const JobId job(request.job_id());
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({call->context(), "GetJob", job}, Right::kRead));
  absl::StatusOr<JobView> view = host_->GetJob(job);
  // The job that was admitted may be gone, and another owner's may have its name by now.
  RETURN_IF_ERROR(Gate::CheckSame(view, caller));
  call->MakeReplyInTurn(view->spec_bytes, [view = *std::move(view), reply] {
    *reply = Encode(view);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status JobsService::GetLayout(ServedCall* call, const v1::GetLayoutRequest& request,
                                    v1::JobLayout* reply) {
  const JobId job(request.job_id());
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({call->context(), "GetLayout", job}, Right::kRead));
  absl::StatusOr<JobView> view = host_->GetJob(job);
  RETURN_IF_ERROR(Gate::CheckSame(view, caller));
  call->MakeReplyInTurn(view->spec_bytes, [view = *std::move(view), reply]() -> absl::Status {
    // Only in the reply's turn, like all that takes memory by the size of a model.
    ASSIGN_OR_RETURN(const ModelLayout layout, LayOut(view.spec->model, view.spec->config));
    *reply = EncodeLayout(layout);
    reply->set_job_id(view.id.value());
    reply->set_generation(view.generation.value());
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status JobsService::List(ServedCall* call, const v1::ListJobsRequest& request,
                               v1::ListJobsResponse* reply) {
  // Of a page: what a client takes in one message, and what the coordinator copies at a time.
  constexpr size_t kMaxPageJobs = 100, kMaxPageBytes = 1 << 20;
  RETURN_IF_ERROR(gate_->Admit({call->context(), "ListJobs"}, Right::kList).status());
  call->MakeReplyInTurn(kMaxPageBytes, [this, reply, after = JobId(request.after_job_id())] {
    const auto views = host_->ListJobs(after, kMaxPageJobs);
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
  });
  return absl::OkStatus();
}

absl::Status JobsService::Watch(CallStream<v1::WatchJobRequest, v1::Job>* stream,
                                v1::WatchJobRequest request) {
  const JobId job(request.job_id());
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({stream->context(), "WatchJob", job}, Right::kRead));
  int64_t seen_change = 0;
  bool seen = false;
  while (true) {
    absl::StatusOr<JobView> view = host_->AwaitChange(
        job, &seen_change, [stream] { return stream->context()->IsCancelled(); });
    // The job was deleted, which is how a watch ends.
    if (seen && absl::IsNotFound(view.status())) return absl::OkStatus();
    if (absl::Status status = Gate::CheckSame(view, caller); !status.ok())
      return seen && view.ok() ? absl::OkStatus() : status;
    seen = true;
    RETURN_IF_ERROR(stream->call()->TakeReplyTurn(view->spec_bytes));
    // So that a client that is slow to take the bytes does not keep the message, too.
    const grpc::ByteBuffer bytes = ToBytes(Encode(*view));
    RETURN_IF_ERROR(stream->call()->WriteInTime(bytes));
    // While it waits for the next change, it keeps no other reply of this client waiting.
    stream->call()->EndReplyTurn();
  }
}

absl::Status JobsService::Delete(ServedCall* call, const v1::DeleteJobRequest& request,
                                 v1::DeleteJobResponse*) {
  // The core checks the owner, not the gate: a deletion is repeated if its reply was lost, and then
  // there is no job any more.
  return gate_->Change({call->context(), "DeleteJob", JobId(request.job_id())}, Right::kList,
                       [&](const Gate::Caller& caller) -> absl::Status {
                         ASSIGN_OR_RETURN(DeleteJobEvent event, Decode(request));
                         event.owner = caller.identity;
                         event.by_operator = caller.is_operator;
                         return host_->DeleteJob(event);
                       });
}

void MembershipService::AddTo(CallServer* calls) {
  const std::string membership = "tessera.v1.Membership/";
  AddUnary(calls, membership + "RegisterWorker", "RegisterWorker", CallKind::kOfWorker, this,
           &MembershipService::Register);
  AddStream(calls, membership + "Connect", "Connect", CallKind::kOfWorker, this,
            &MembershipService::Connect, kMaxMessageBytes);
  AddUnary(calls, membership + "ListWorkers", "ListWorkers", CallKind::kShort, this,
           &MembershipService::ListWorkers);
}

absl::Status MembershipService::Register(ServedCall* call, const v1::RegisterWorkerRequest& request,
                                         v1::RegisterWorkerResponse* reply) {
  return gate_->ChangeAsWorker(
      {call->context(), "RegisterWorker"}, request.worker_id(), [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const RegisterWorkerEvent event, Decode(request));
        ASSIGN_OR_RETURN(const Incarnation incarnation, host_->RegisterWorker(event));
        reply->set_incarnation(incarnation.value());
        reply->set_heartbeat_interval_ms(absl::ToInt64Milliseconds(heartbeat_interval_));
        reply->set_worker_timeout_ms(absl::ToInt64Milliseconds(worker_timeout_));
        reply->set_cluster_id(host_->cluster());
        // Only what is durable by now: the worker tells it to later coordinators (docs/adr/0069).
        const HeardJournal heard = host_->ToHear();
        reply->set_start(heard.start);
        reply->set_changes(heard.changes);
        return absl::OkStatus();
      });
}

absl::Status MembershipService::Connect(Stream* stream, v1::WorkerEvent first) {
  grpc::ServerContext* const context = stream->context();
  ASSIGN_OR_RETURN(const Sender sender, DecodeSender(first));
  RETURN_IF_ERROR(gate_->AdmitWorker({context, "Connect"}, first.worker_id()).status());
  // Again, because the worker may have registered with the coordinator of another cluster.
  RETURN_IF_ERROR(host_->CheckCluster(sender.worker, first.cluster_id()));
  // Closed when it is full, or when a newer stream of the worker takes its place.
  auto outbox = std::make_shared<Outbox>([context] { context->TryCancel(); });
  if (absl::Status status = host_->Connect(sender, first.key(), outbox); !status.ok()) {
    // The stream ends with this status, not as cancelled.
    outbox->Detach();
    return status;
  }
  // The worker is known now. Clients must not be able to block it by taking all places.
  stream->call()->GiveUpPlace();
  SteadyNotification written;
  absl::StatusOr<std::thread> writer = StartThread("a worker's stream", [&] {
    const absl::Cleanup tell = [&] { written.Notify(); };
    while (std::optional<Command> command = outbox->Pop()) {
      v1::CoordinatorCommand encoded = Encode(*command);
      encoded.set_cluster_id(host_->cluster());
      // These include the change that the command follows from, which was counted before.
      encoded.set_changes(host_->ToHear().changes);
      if (encoded.has_prepare()) {
        v1::Job* job = encoded.mutable_prepare()->mutable_job();
        // Executors keep checkpoints below these, since only they see the links in a path.
        for (std::string& root : gate_->rules().SaveRootsOf(job->owner()))
          job->add_save_roots(std::move(root));
      }
      if (!stream->Write(encoded)) {
        // Otherwise ReadEvents, on the other thread, would go on reading.
        context->TryCancel();
        return;
      }
    }
  });
  const absl::Status status =
      writer.ok() ? ReadEvents(sender, outbox, std::move(first), stream) : writer.status();
  // Wakes the writer, which then ends.
  outbox->Detach();
  host_->Disconnect(sender.worker, outbox);
  if (!writer.ok()) return status;
  // A worker that takes nothing any more, and whose stream holds no place, would keep the thread.
  if (!written.WaitWithTimeout(kLastWriteTimeout)) context->TryCancel();
  // The writer uses the stream and this frame.
  writer->join();
  return status;
}

absl::Status MembershipService::ListWorkers(ServedCall* call, const v1::ListWorkersRequest&,
                                            v1::ListWorkersResponse* reply) {
  RETURN_IF_ERROR(gate_->Admit({call->context(), "ListWorkers"}, Right::kList).status());
  const auto bytes = static_cast<int64_t>(host_->ListWorkers().size() * sizeof(v1::WorkerInfo));
  call->MakeReplyInTurn(bytes, [this, reply] {
    // Listed again in its turn, so that no list waits in memory.
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
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status MembershipService::ReadEvents(const Sender& sender,
                                           const std::shared_ptr<Outbox>& outbox,
                                           v1::WorkerEvent first, Stream* stream) {
  v1::WorkerEvent event = std::move(first);
  // The first message may carry nothing but the sender's name.
  bool has_event = event.event_case() != v1::WorkerEvent::EVENT_NOT_SET;
  do {
    if (has_event) {
      ASSIGN_OR_RETURN(const StreamEvent decoded, Decode(event));
      RETURN_IF_ERROR(host_->OnStreamEvent(sender, outbox, decoded));
    }
    has_event = true;
  } while (stream->Read(&event));
  return absl::OkStatus();
}

void CheckpointsService::AddTo(CallServer* calls) {
  const std::string checkpoints = "tessera.v1.Checkpoints/";
  AddUnary(calls, checkpoints + "RequestSave", "RequestSave", CallKind::kShort, this,
           &CheckpointsService::RequestSave);
  AddUnary(calls, checkpoints + "GetSave", "GetSave", CallKind::kShort, this,
           &CheckpointsService::GetSave);
  AddUnary(calls, checkpoints + "CancelSave", "CancelSave", CallKind::kShort, this,
           &CheckpointsService::CancelSave);
  AddUnary(calls, checkpoints + "ListCheckpoints", "ListCheckpoints", CallKind::kShort, this,
           &CheckpointsService::List);
}

absl::Status CheckpointsService::RequestSave(ServedCall* call,
                                             const v1::RequestSaveRequest& request,
                                             v1::Save* reply) {
  const JobId job(request.job_id());
  const auto save = [&](const Gate::Caller& caller) -> absl::Status {
    ASSIGN_OR_RETURN(RequestSaveEvent event, Decode(request));
    // The caller's right to the path is decided here. The executor keeps the save below this root.
    ASSIGN_OR_RETURN(event.spec.root, gate_->rules().SaveRootOf(caller.identity, event.spec.path));
    return host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) -> absl::Status {
      // Under the core's lock, so that the job cannot be replaced between check and request.
      RETURN_IF_ERROR(Gate::CheckSame(core.GetJob(job), caller));
      ASSIGN_OR_RETURN(const SaveView view, core.RequestSave(event, now, effects));
      *reply = Encode(job, view);
      return absl::OkStatus();
    });
  };
  return gate_->Change({call->context(), "RequestSave", job}, Right::kChange, save);
}

absl::Status CheckpointsService::GetSave(ServedCall* call, const v1::GetSaveRequest& request,
                                         v1::Save* reply) {
  const JobId job(request.job_id());
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({call->context(), "GetSave", job}, Right::kRead));
  const absl::StatusOr<SaveView> view = host_->GetSave(job, request.number());
  // A later generation never has a smaller number, so what was just seen was of this one.
  RETURN_IF_ERROR(Gate::CheckSame(host_->GetJob(job), caller));
  RETURN_IF_ERROR(view.status());
  *reply = Encode(job, *view);
  return absl::OkStatus();
}

absl::Status CheckpointsService::CancelSave(ServedCall* call, const v1::CancelSaveRequest& request,
                                            v1::Save* reply) {
  const JobId job(request.job_id());
  const auto cancel = [&](const Gate::Caller& caller) {
    return host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) -> absl::Status {
      RETURN_IF_ERROR(Gate::CheckSame(core.GetJob(job), caller));
      ASSIGN_OR_RETURN(const SaveView view, core.CancelSave(job, request.number(), now, effects));
      *reply = Encode(job, view);
      return absl::OkStatus();
    });
  };
  return gate_->Change({call->context(), "CancelSave", job}, Right::kChange, cancel);
}

absl::Status CheckpointsService::List(ServedCall* call, const v1::ListCheckpointsRequest& request,
                                      v1::ListCheckpointsResponse* reply) {
  const JobId job(request.job_id());
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({call->context(), "ListCheckpoints", job}, Right::kRead));
  call->MakeReplyInTurn(SaveLog::kMaxEndedTextBytes, [this, job, caller, reply]() -> absl::Status {
    const auto views = host_->ListSaves(job);
    RETURN_IF_ERROR(Gate::CheckSame(host_->GetJob(job), caller));
    RETURN_IF_ERROR(views.status());
    for (const SaveView& view : *views) *reply->add_saves() = Encode(job, view);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
