#include "coordinator/service/live/put_service.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::coordinator {

void LivePutService::AddTo(CallServer* calls) {
  AddStream(calls, "tessera.v1.LivePut/PutLiveState", "PutLiveState", CallKind::kWaiting, this,
            &LivePutService::Put, kMaxMessageBytes);
}

absl::Status LivePutService::Put(CallStream<v1::PutRequest, v1::PutReply>* stream,
                                 v1::PutRequest first) {
  grpc::ServerContext* const context = stream->context();
  if (!first.has_begin()) return absl::InvalidArgumentError("the put does not begin with a begin");
  LiveWriter::Client client;
  client.read = [stream](v1::PutRequest* request) { return stream->Read(request); };
  client.cancelled = [context] { return context->IsCancelled(); };
  client.cancel = [context] { context->TryCancel(); };
  return gate_->Change(
      {context, "PutLiveState", JobId(first.begin().job_id())}, Right::kChange,
      [&](const Gate::Caller& caller) -> absl::Status {
        // The caller was let in for this generation, and a later one may belong to another owner.
        if (first.begin().generation() == 0)
          first.mutable_begin()->set_generation(caller.generation.value());
        ASSIGN_OR_RETURN(const v1::PutReply reply,
                         LiveWriter(host_, hub_, times_, std::move(client)).Write(first.begin()));
        stream->call()->SetReply([reply] { return ToBytes(reply); });
        return absl::OkStatus();
      });
}

}  // namespace tessera::coordinator
