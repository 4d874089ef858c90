// A call that the gate has let in: it has a place among its client's (call_limits.h), and what is
// read of it and sent for it has a deadline (call_watch.h). Thread-compatible.
#ifndef TESSERA_COORDINATOR_SERVICE_ENTERED_CALL_H_
#define TESSERA_COORDINATOR_SERVICE_ENTERED_CALL_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/call_limits.h"
#include "coordinator/service/call_watch.h"
#include "grpcpp/server_context.h"

namespace tessera::coordinator {

// What a client or server of ours takes in one message. A model of 100,000 parameters takes some 20
// MiB.
constexpr int kMaxMessageBytes = 64 << 20;

class EnteredCall {
 public:
  struct Times {
    absl::Duration request = absl::Seconds(10);  // For a client to send its request.
    absl::Duration reply = absl::Minutes(1);     // For a client to take a reply.
  };
  // But for those that say otherwise.
  static constexpr int64_t kMaxRequestBytes = int64_t{1} << 20;

  // `limits` and `watch` outlive this.
  EnteredCall(std::string identity, grpc::ServerContextBase* context, CallKind kind,
              CallLimits::Place place, CallLimits* limits, CallWatch* watch, const Times& times)
      : identity_(std::move(identity)),
        context_(context),
        kind_(kind),
        place_(std::move(place)),
        limits_(limits),
        watch_(watch),
        times_(times) {}

  const std::string& identity() const { return identity_; }

  // The first message of a call, or the only one.
  // Errors: DeadlineExceeded   it did not come in time
  //         ResourceExhausted  it is too long, or there is no memory for it
  //         InvalidArgument    the stream ended before it
  template <typename Stream, typename Message>
  absl::Status Read(Stream* stream, Message* message, int64_t max_bytes = kMaxRequestBytes) {
    return RunRead([&] { return stream->Read(message); },
                   [&] { return static_cast<int64_t>(message->ByteSizeLong()); }, max_bytes);
  }

  // Before a reply is made of what takes so many bytes of memory; until EndReplyTurn, or the call
  // ends. Errors: ResourceExhausted, Cancelled  as CallLimits::TakeTurn
  absl::Status TakeReplyTurn(int64_t bytes);
  void EndReplyTurn() { replying_ = nullptr; }
  // Errors: DeadlineExceeded  the client does not take it
  //         Cancelled         the client is gone
  template <typename Stream, typename Message>
  absl::Status Write(Stream* stream, const Message& message) {
    return RunWrite([&] { return stream->Write(message); });
  }

  // It is the call of a worker that is known now, and counts no more.
  void GiveUpPlace() { place_.Leave(); }

 private:
  absl::Status RunRead(absl::FunctionRef<bool()> read, absl::FunctionRef<int64_t()> size,
                       int64_t max_bytes);
  absl::Status RunWrite(absl::FunctionRef<bool()> write);
  std::string Who() const;

  const std::string identity_;
  grpc::ServerContextBase* const context_;
  const CallKind kind_;
  CallLimits::Place place_;
  CallLimits* const limits_;
  CallWatch* const watch_;
  const Times times_;
  CallLimits::Turn reading_;  // Of a short call with a long request: until it ends.
  CallLimits::Turn replying_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_ENTERED_CALL_H_
