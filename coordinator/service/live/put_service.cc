#include "coordinator/service/live/put_service.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/start_thread.h"
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
        if (first.begin().generation() == 0)
          first.mutable_begin()->set_generation(caller.generation.value());
        ASSIGN_OR_RETURN(const v1::PutReply reply,
                         LiveWriter(host_, hub_, times_, std::move(client)).Write(first.begin()));
        stream->call()->SetReply([reply] { return ToBytes(reply); });
        return absl::OkStatus();
      });
}

void LivePutRelayService::AddTo(CallServer* calls) {
  AddStream(calls, "tessera.v1.LivePutRelay/Relay", "LivePutRelay", CallKind::kOfWorker, this,
            &LivePutRelayService::Relay);
}

absl::Status LivePutRelayService::Relay(CallStream<v1::PutEvent, v1::PutCommand>* stream,
                                        v1::PutEvent event) {
  grpc::ServerContext* const context = stream->context();
  if (!event.has_hello())
    return absl::InvalidArgumentError("the stream does not begin with a hello");
  RETURN_IF_ERROR(
      gate_->AdmitWorker({context, "LivePutRelay"}, event.hello().worker_id()).status());
  const std::shared_ptr<PutLine> line =
      hub_->Find(event.hello().session(), event.hello().worker_id());
  if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
    return absl::NotFoundError("nobody waits for this worker's part");
  stream->call()->GiveUpPlace();
  absl::StatusOr<std::thread> writer = StartThread("a put's stream", [&line, stream, context] {
    while (std::optional<v1::PutCommand> command = line->Pop()) {
      if (stream->Write(*command)) continue;
      context->TryCancel();
      return;
    }
  });
  while (writer.ok() && stream->Read(&event) && line->Push(std::move(event))) continue;
  line->Detach();
  if (writer.ok()) writer->join();
  return writer.status();
}

}  // namespace tessera::coordinator
