#include "coordinator/service/live/live_service.h"

#include <string>
#include <utility>

#include "base/status_macros.h"

namespace tessera::coordinator {

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
  for (size_t tensor = 0; tensor < plan.tensors.size(); ++tensor)
    RETURN_IF_ERROR(stream->WriteInTime(plan.InfoOf(tensor)));
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

}  // namespace tessera::coordinator
