// Serves calls through the gate. Of services made with these, gRPC reads nothing before a call has
// entered, also where a call is unary: therefore they are generated StreamedServices, whose calls
// are the same on the wire. Stateless; thread-safe.
//
//   enter ─► read the request ─► body: may he, do it ─► send the reply
#ifndef TESSERA_COORDINATOR_SERVICE_SERVE_H_
#define TESSERA_COORDINATOR_SERVICE_SERVE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "coordinator/service/entered_call.h"
#include "coordinator/service/gate.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/sync_stream.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {

// Errors: as EnteredCall::Read; these are logged.
template <typename Stream, typename Message>
absl::Status ReadFirst(const Gate& gate, const Gate::Call& call, EnteredCall* entered,
                       Stream* stream, Message* message,
                       int64_t max_bytes = EnteredCall::kMaxRequestBytes) {
  return gate.NoteRead(call, *entered, entered->Read(stream, message, max_bytes));
}

// `body`: absl::Status(EnteredCall*, const Request&, Reply*)
template <typename Request, typename Reply, typename Body>
grpc::Status ServeUnary(const Gate& gate, const Gate::Call& call, CallKind kind,
                        grpc::ServerUnaryStreamer<Request, Reply>* stream, Body body,
                        int64_t max_bytes = EnteredCall::kMaxRequestBytes) {
  const auto serve = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(EnteredCall entered, gate.Enter(call, kind));
    Request request;
    RETURN_IF_ERROR(ReadFirst(gate, call, &entered, stream, &request, max_bytes));
    Reply reply;
    RETURN_IF_ERROR(body(&entered, request, &reply));
    return entered.Write(stream, reply);
  };
  return ToGrpcStatus(serve());
}

// `body`: absl::Status(EnteredCall*, const Request&), which writes to `stream`.
template <typename Request, typename Reply, typename Body>
grpc::Status ServeStream(const Gate& gate, const Gate::Call& call,
                         grpc::ServerSplitStreamer<Request, Reply>* stream, Body body,
                         int64_t max_bytes = EnteredCall::kMaxRequestBytes) {
  const auto serve = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(EnteredCall entered, gate.Enter(call, CallKind::kWaiting));
    Request request;
    RETURN_IF_ERROR(ReadFirst(gate, call, &entered, stream, &request, max_bytes));
    return body(&entered, request);
  };
  return ToGrpcStatus(serve());
}

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVE_H_
