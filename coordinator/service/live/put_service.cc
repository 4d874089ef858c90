#include "coordinator/service/live/put_service.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {

grpc::Status LivePutService::PutLiveState(grpc::ServerContext* context,
                                          grpc::ServerReader<v1::PutRequest>* reader,
                                          v1::PutReply* reply) {
  if (absl::Status status = gate_->CheckKnown({context, "PutLiveState"}); !status.ok())
    return ToGrpcStatus(status);
  v1::PutRequest first;
  if (!reader->Read(&first) || !first.has_begin())
    return ToGrpcStatus(absl::InvalidArgumentError("the put does not begin with a begin"));
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
  if (absl::Status status = gate_->CheckKnown({context, "LivePutRelay"}); !status.ok())
    return ToGrpcStatus(status);
  v1::PutEvent event;
  if (!stream->Read(&event) || !event.has_hello())
    return ToGrpcStatus(absl::InvalidArgumentError("the stream does not begin with a hello"));
  const auto caller = gate_->AdmitWorker({context, "LivePutRelay"}, event.hello().worker_id());
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const std::shared_ptr<PutLine> line =
      hub_->Find(event.hello().session(), event.hello().worker_id());
  if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
    return ToGrpcStatus(absl::NotFoundError("nobody waits for this worker's part"));
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
  return ToGrpcStatus(writer.status());
}

}  // namespace tessera::coordinator
