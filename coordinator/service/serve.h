// Adds the methods of services to a CallServer, with their messages:
//
//   AddUnary(calls, "tessera.v1.Jobs/GetJob", "GetJob", CallKind::kShort, this, &Jobs::GetJob);
//
// On the wire they are what the .proto says. Stateless.
#ifndef TESSERA_COORDINATOR_SERVICE_SERVE_H_
#define TESSERA_COORDINATOR_SERVICE_SERVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "coordinator/service/call_server.h"
#include "coordinator/service/served_call.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"

namespace tessera::coordinator {

template <typename Message>
grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool is_own = false;
  // Fails for no message; one that is too long is refused where it is sent.
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &is_own);
  return bytes;
}

// Takes the bytes. False: they are no such message.
template <typename Message>
bool FromBytes(grpc::ByteBuffer* bytes, Message* message) {
  return grpc::SerializationTraits<Message>::Deserialize(bytes, message).ok();
}

// A call of several messages, as its handler sees it. One thread may read while another writes.
template <typename Request, typename Reply>
class CallStream {
 public:
  explicit CallStream(ServedCall* call) : call_(call) {}

  ServedCall* call() const { return call_; }
  grpc::ServerContext* context() const { return call_->context(); }
  // False: none comes, or it is no such message.
  bool Read(Request* message) {
    grpc::ByteBuffer bytes;
    return call_->Read(&bytes) && FromBytes(&bytes, message);
  }
  // False: the call has ended.
  bool Write(const Reply& message) { return call_->Write(ToBytes(message)); }
  // Errors: as ServedCall::WriteInTime
  absl::Status WriteInTime(const Reply& message) { return call_->WriteInTime(ToBytes(message)); }

 private:
  ServedCall* const call_;
};

// Errors: InvalidArgument  it is not such a message
template <typename Request>
absl::Status TakeRequest(ServedCall* call, Request* request) {
  if (FromBytes(call->request(), request)) return absl::OkStatus();
  return absl::InvalidArgumentError("the call ended before its first message");
}

// `name`: as the log has it. `serve`: of one request, a Message or const Message&, and one reply.
template <typename Service, typename Request, typename Reply>
void AddUnary(CallServer* calls, const std::string& path, std::string name, CallKind kind,
              Service* service, absl::Status (Service::*serve)(ServedCall*, Request, Reply*),
              int64_t max_request_bytes = kMaxRequestBytes) {
  Method method;
  method.name = std::move(name);
  method.kind = kind;
  method.has_own_thread = kind == CallKind::kWaiting;
  method.max_request_bytes = max_request_bytes;
  method.run = [service, serve](ServedCall* call) -> absl::Status {
    const auto reply = std::make_shared<Reply>();
    std::decay_t<Request> request;
    RETURN_IF_ERROR(TakeRequest(call, &request));
    RETURN_IF_ERROR((service->*serve)(call, std::move(request), reply.get()));
    call->SetReply([reply] { return ToBytes(*reply); });
    return absl::OkStatus();
  };
  calls->Add(path, std::move(method));
}

// `serve`: of a stream in one direction or both, whose first message has been read.
template <typename Service, typename Request, typename Reply>
void AddStream(CallServer* calls, const std::string& path, std::string name, CallKind kind,
               Service* service,
               absl::Status (Service::*serve)(CallStream<Request, Reply>*, Request),
               int64_t max_request_bytes = kMaxRequestBytes) {
  Method method;
  method.name = std::move(name);
  method.kind = kind;
  method.has_own_thread = true;
  method.max_request_bytes = max_request_bytes;
  method.run = [service, serve](ServedCall* call) -> absl::Status {
    Request first;
    RETURN_IF_ERROR(TakeRequest(call, &first));
    CallStream<Request, Reply> stream(call);
    return (service->*serve)(&stream, std::move(first));
  };
  calls->Add(path, std::move(method));
}

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVE_H_
