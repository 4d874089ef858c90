#include "coordinator/service/live/live_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace tessera::coordinator {
namespace {

constexpr size_t kMaxPieceBytes = 1 << 20;

// Runs the worker's commands one at a time. Each has one answer; pieces follow the answer to a
// copy.
void ServeLine(LiveLine* line, CallStream<v1::LiveEvent, v1::LiveCommand>* stream) {
  const auto cancelled = [stream] { return stream->context()->IsCancelled(); };
  v1::LiveEvent event;
  while (std::optional<v1::LiveCommand> command = line->AwaitCommand(cancelled)) {
    // More events follow the answer to these.
    const bool is_copy = command->has_copy() || command->has_read() || command->has_serve();
    if (!stream->Write(*command)) return;
    do {
      if (!stream->Read(&event)) return;
      if (event.has_piece() && event.piece().data().size() > kMaxPieceBytes) return;
      if (!line->Push(std::move(event))) return;
    } while (is_copy);
  }
}

}  // namespace

void LiveStateService::AddTo(CallServer* calls) {
  const std::string path = "tessera.v1.LiveState/";
  AddStream(calls, path + "ListLiveState", "ListLiveState", CallKind::kWaiting, this,
            &LiveStateService::List, kMaxMessageBytes);
  AddStream(calls, path + "GetLiveState", "GetLiveState", CallKind::kWaiting, this,
            &LiveStateService::Get, kMaxMessageBytes);
}

absl::Status LiveStateService::List(CallStream<v1::LiveStateQuery, v1::LiveTensorInfo>* stream,
                                    v1::LiveStateQuery query) {
  ASSIGN_OR_RETURN(
      const Gate::Caller caller,
      gate_->Admit({stream->context(), "ListLiveState", JobId(query.job_id())}, Right::kRead));
  const absl::StatusOr<JobView> view = host_->GetJob(JobId(query.job_id()));
  RETURN_IF_ERROR(Gate::CheckSame(view, caller));
  RETURN_IF_ERROR(stream->call()->TakeReplyTurn(view->spec_bytes));
  ASSIGN_OR_RETURN(const LivePlan plan, PlanLiveRead(view->spec->model, view->spec->config, query));
  for (size_t entry = 0; entry < plan.num_entries(); ++entry)
    RETURN_IF_ERROR(stream->WriteInTime(plan.InfoOf(entry)));
  return absl::OkStatus();
}

absl::Status LiveStateService::Get(CallStream<v1::LiveStateQuery, v1::LiveStateReply>* stream,
                                   v1::LiveStateQuery query) {
  grpc::ServerContext* const context = stream->context();
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({context, "GetLiveState", JobId(query.job_id())}, Right::kRead));
  LiveRead::Client client;
  client.write = [stream](const v1::LiveStateReply& reply) { return stream->Write(reply); };
  client.cancelled = [context] { return context->IsCancelled(); };
  client.cancel = [context] { context->TryCancel(); };
  return LiveRead(host_, hub_, times_, std::move(client)).Read(query, caller);
}

void LiveRelayService::AddTo(CallServer* calls) {
  AddStream(calls, "tessera.v1.LiveRelay/Relay", "LiveRelay", CallKind::kOfWorker, this,
            &LiveRelayService::Relay);
}

absl::Status LiveRelayService::Relay(CallStream<v1::LiveEvent, v1::LiveCommand>* stream,
                                     v1::LiveEvent hello) {
  grpc::ServerContext* const context = stream->context();
  if (!hello.has_hello())
    return absl::InvalidArgumentError("the stream does not begin with a hello");
  RETURN_IF_ERROR(gate_->AdmitWorker({context, "LiveRelay"}, hello.hello().worker_id()).status());
  const std::shared_ptr<LiveLine> line =
      hub_->Find(hello.hello().session(), hello.hello().worker_id());
  if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
    return absl::NotFoundError("nobody waits for this worker's state");
  stream->call()->GiveUpPlace();
  ServeLine(line.get(), stream);
  line->Detach();
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
