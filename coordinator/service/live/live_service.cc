#include "coordinator/service/live/live_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {
namespace {

constexpr size_t kMaxPieceBytes = 1 << 20;

// Runs the worker's commands one after the other: each has one answer, a copy's has pieces after
// it.
void ServeLine(LiveLine* line, grpc::ServerContext* context, LiveRelayService::Stream* stream) {
  const auto cancelled = [context] { return context->IsCancelled(); };
  v1::LiveEvent event;
  while (std::optional<v1::LiveCommand> command = line->AwaitCommand(cancelled)) {
    // Of these more follows.
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

grpc::Status LiveStateService::ListLiveState(grpc::ServerContext* context,
                                             const v1::LiveStateQuery* query,
                                             grpc::ServerWriter<v1::LiveTensorInfo>* writer) {
  const auto caller =
      gate_->Admit({context, "ListLiveState", JobId(query->job_id())}, Right::kRead);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<JobView> view = host_->GetJob(JobId(query->job_id()));
  if (absl::Status status = Gate::CheckSame(view, *caller); !status.ok())
    return ToGrpcStatus(status);
  const absl::StatusOr<LivePlan> plan = PlanLiveRead(view->spec->model, view->spec->config, *query);
  if (!plan.ok()) return ToGrpcStatus(plan.status());
  for (size_t entry = 0; entry < plan->num_entries(); ++entry) {
    if (!writer->Write(plan->InfoOf(entry))) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

grpc::Status LiveStateService::GetLiveState(grpc::ServerContext* context,
                                            const v1::LiveStateQuery* query,
                                            grpc::ServerWriter<v1::LiveStateReply>* writer) {
  const auto caller = gate_->Admit({context, "GetLiveState", JobId(query->job_id())}, Right::kRead);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  LiveReader::Client client;
  client.write = [writer](const v1::LiveStateReply& reply) { return writer->Write(reply); };
  client.cancelled = [context] { return context->IsCancelled(); };
  client.cancel = [context] { context->TryCancel(); };
  return ToGrpcStatus(LiveReader(host_, hub_, times_, std::move(client)).Read(*query, *caller));
}

grpc::Status LiveRelayService::Relay(grpc::ServerContext* context, Stream* stream) {
  if (absl::Status status = gate_->CheckKnown({context, "LiveRelay"}); !status.ok())
    return ToGrpcStatus(status);
  v1::LiveEvent hello;
  if (!stream->Read(&hello) || !hello.has_hello())
    return ToGrpcStatus(absl::InvalidArgumentError("the stream does not begin with a hello"));
  const auto caller = gate_->AdmitWorker({context, "LiveRelay"}, hello.hello().worker_id());
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const std::shared_ptr<LiveLine> line =
      hub_->Find(hello.hello().session(), hello.hello().worker_id());
  if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
    return ToGrpcStatus(absl::NotFoundError("nobody waits for this worker's state"));
  ServeLine(line.get(), context, stream);
  line->Detach();
  return grpc::Status::OK;
}

}  // namespace tessera::coordinator
