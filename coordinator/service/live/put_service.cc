#include "coordinator/service/live/put_service.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "coordinator/service/serve.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {

grpc::Status LivePutService::PutLiveState(grpc::ServerContext* context,
                                          grpc::ServerReader<v1::PutRequest>* reader,
                                          v1::PutReply* reply) {
  return ToGrpcStatus(Run(context, reader, reply));
}

absl::Status LivePutService::Run(grpc::ServerContext* context,
                                 grpc::ServerReader<v1::PutRequest>* reader, v1::PutReply* reply) {
  const Gate::Call call{context, "PutLiveState"};
  ASSIGN_OR_RETURN(EnteredCall entered, gate_->Enter(call, CallKind::kWaiting));
  v1::PutRequest first;
  RETURN_IF_ERROR(ReadFirst(*gate_, call, &entered, reader, &first, kMaxMessageBytes));
  if (!first.has_begin()) return absl::InvalidArgumentError("the put does not begin with a begin");
  LiveWriter::Client client;
  client.read = [reader](v1::PutRequest* request) { return reader->Read(request); };
  client.cancelled = [context] { return context->IsCancelled(); };
  client.cancel = [context] { context->TryCancel(); };
  return gate_->Change(
      {context, "PutLiveState", JobId(first.begin().job_id())}, Right::kChange,
      [&](const Gate::Caller& caller) -> absl::Status {
        if (first.begin().creation() == 0)
          first.mutable_begin()->set_creation(caller.creation.value());
        ASSIGN_OR_RETURN(*reply,
                         LiveWriter(host_, hub_, times_, std::move(client)).Write(first.begin()));
        return absl::OkStatus();
      });
}

grpc::Status LivePutRelayService::Relay(grpc::ServerContext* context, Stream* stream) {
  return ToGrpcStatus(RunRelay(context, stream));
}

absl::Status LivePutRelayService::RunRelay(grpc::ServerContext* context, Stream* stream) {
  const Gate::Call call{context, "LivePutRelay"};
  ASSIGN_OR_RETURN(EnteredCall entered, gate_->Enter(call, CallKind::kOfWorker));
  v1::PutEvent event;
  RETURN_IF_ERROR(ReadFirst(*gate_, call, &entered, stream, &event));
  if (!event.has_hello())
    return absl::InvalidArgumentError("the stream does not begin with a hello");
  RETURN_IF_ERROR(gate_->AdmitWorker(call, event.hello().worker_id()).status());
  const std::shared_ptr<PutLine> line =
      hub_->Find(event.hello().session(), event.hello().worker_id());
  if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
    return absl::NotFoundError("nobody waits for this worker's part");
  entered.GiveUpPlace();
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
