#include "coordinator/service/live/live_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/service/serve.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {
namespace {

constexpr size_t kMaxPieceBytes = 1 << 20;

// Runs the worker's commands one at a time. Each has one answer; pieces follow the answer to a
// copy.
void ServeLine(LiveLine* line, grpc::ServerContext* context, LiveRelayService::Stream* stream) {
  const auto cancelled = [context] { return context->IsCancelled(); };
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

grpc::Status LiveStateService::StreamedListLiveState(
    grpc::ServerContext* context,
    grpc::ServerSplitStreamer<v1::LiveStateQuery, v1::LiveTensorInfo>* stream) {
  const auto list = [&](EnteredCall* entered, const v1::LiveStateQuery& query) -> absl::Status {
    ASSIGN_OR_RETURN(const Gate::Caller caller,
                     gate_->Admit({context, "ListLiveState", JobId(query.job_id())}, Right::kRead));
    const absl::StatusOr<JobView> view = host_->GetJob(JobId(query.job_id()));
    RETURN_IF_ERROR(Gate::CheckSame(view, caller));
    RETURN_IF_ERROR(entered->TakeReplyTurn(view->spec_bytes));
    ASSIGN_OR_RETURN(const LivePlan plan,
                     PlanLiveRead(view->spec->model, view->spec->config, query));
    for (size_t entry = 0; entry < plan.num_entries(); ++entry)
      RETURN_IF_ERROR(entered->Write(stream, plan.InfoOf(entry)));
    return absl::OkStatus();
  };
  return ServeStream(*gate_, {context, "ListLiveState"}, stream, list, kMaxMessageBytes);
}

grpc::Status LiveStateService::StreamedGetLiveState(
    grpc::ServerContext* context,
    grpc::ServerSplitStreamer<v1::LiveStateQuery, v1::LiveStateReply>* stream) {
  const auto get = [&](EnteredCall*, const v1::LiveStateQuery& query) -> absl::Status {
    ASSIGN_OR_RETURN(const Gate::Caller caller,
                     gate_->Admit({context, "GetLiveState", JobId(query.job_id())}, Right::kRead));
    LiveReader::Client client;
    client.write = [stream](const v1::LiveStateReply& reply) { return stream->Write(reply); };
    client.cancelled = [context] { return context->IsCancelled(); };
    client.cancel = [context] { context->TryCancel(); };
    return LiveReader(host_, hub_, times_, std::move(client)).Read(query, caller);
  };
  return ServeStream(*gate_, {context, "GetLiveState"}, stream, get, kMaxMessageBytes);
}

grpc::Status LiveRelayService::Relay(grpc::ServerContext* context, Stream* stream) {
  return ToGrpcStatus(RunRelay(context, stream));
}

absl::Status LiveRelayService::RunRelay(grpc::ServerContext* context, Stream* stream) {
  const Gate::Call call{context, "LiveRelay"};
  ASSIGN_OR_RETURN(EnteredCall entered, gate_->Enter(call, CallKind::kOfWorker));
  v1::LiveEvent hello;
  RETURN_IF_ERROR(ReadFirst(*gate_, call, &entered, stream, &hello));
  if (!hello.has_hello())
    return absl::InvalidArgumentError("the stream does not begin with a hello");
  RETURN_IF_ERROR(gate_->AdmitWorker(call, hello.hello().worker_id()).status());
  const std::shared_ptr<LiveLine> line =
      hub_->Find(hello.hello().session(), hello.hello().worker_id());
  if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
    return absl::NotFoundError("nobody waits for this worker's state");
  entered.GiveUpPlace();
  ServeLine(line.get(), context, stream);
  line->Detach();
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
