// One call to the coordinator, from its arrival until its status is sent:
//
//   arrive ─► enter ─► turn to read ─► read ─► (turn) ─► handler ─► (turn) ─► send ─► end
//                                                         thread
//
// The turns in brackets are for long requests and replies.
//
// Only the handler has a thread. A call that is refused, whose client sends slowly, or does not
// take what it asked for, has none: gRPC tells by events what has become of each step. What a call
// of a client that the gate has let in takes is limited (call_limits.h), and each step has a
// deadline (call_watch.h).
//
// Of streams, handlers get it as a CallStream (serve.h). A handler has it for itself.
#ifndef TESSERA_COORDINATOR_SERVICE_SERVED_CALL_H_
#define TESSERA_COORDINATOR_SERVICE_SERVED_CALL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/call_limits.h"
#include "coordinator/service/call_watch.h"
#include "coordinator/service/gate.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"

namespace tessera::coordinator {

class CallServer;
class HandlerPool;
struct Method;

class ServedCall {
 public:
  // Asks `server`, which outlives this, for a call. It deletes itself.
  static void Await(CallServer* server);
  // Of a tag of the server's completion queue.
  static void OnEvent(void* tag, bool ok);

  // For handlers. Whether the client is gone: context()->IsCancelled(); to end it: TryCancel().
  grpc::ServerContext* context() { return &context_; }
  grpc::ByteBuffer* request() { return &message_; }  // The first message.

  // Waits for the next message. False: none comes. One thread at a time; another may write.
  bool Read(grpc::ByteBuffer* message);
  // Waits until it is sent. False: the call has ended. Likewise.
  bool Write(const grpc::ByteBuffer& message);
  // As Write. Errors: DeadlineExceeded  the client does not take it
  //                   Cancelled         the client is gone
  absl::Status WriteInTime(const grpc::ByteBuffer& message);
  // Of a stream: before a reply is made of what takes so many bytes of memory; until EndReplyTurn.
  // Errors: Unavailable, Cancelled  as CallLimits::TakeTurn
  absl::Status TakeReplyTurn(int64_t bytes);
  void EndReplyTurn() { long_turn_ = nullptr; }
  // Of a unary call whose reply is made of what takes so many bytes: `make` is called in its turn,
  // after the handler, and may fail instead.
  void MakeReplyInTurn(int64_t bytes, std::function<absl::Status()> make);
  // Of a unary call: what is sent where the handler succeeds.
  void SetReply(std::function<grpc::ByteBuffer()> reply) { reply_ = std::move(reply); }
  // It is the call of a worker that is known now, and counts no more.
  void GiveUpPlace() { place_.reset(); }

 private:
  friend class CallServer;

  enum class Event { kArrived, kDone, kRead, kWritten, kFinished };
  struct Tag {
    ServedCall* call;
    Event event;
  };
  enum class Phase { kReading, kQueued, kHandled, kReplying };

  explicit ServedCall(CallServer* server);
  ~ServedCall() = default;

  void Ref() { refs_.fetch_add(1, std::memory_order_acq_rel); }
  void Unref();
  void* TagOf(Event event) { return &tags_[static_cast<size_t>(event)]; }

  void OnArrived();
  void OnDone();
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished();

  void AwaitTurn(CallLimits::Of what, absl::Time deadline);
  void OnTurn(CallLimits::Turn turn);
  void Run(HandlerPool* pool, void (ServedCall::*step)());
  void EndWait(CallLimits::TurnRequest* request);
  void ReadFirst();
  absl::Status CheckFirst(bool ok);
  void EndReading(const absl::Status& status);
  void Handle();
  void SendReply();
  void Finish(const absl::Status& status);
  void SendFixed();
  std::string Who() const;
  absl::Status LateReply() const;

  CallServer* const server_;
  std::array<Tag, 5> tags_;
  std::atomic<int> refs_{1};
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};

  // One step has these after the other.
  const Method* method_ = nullptr;
  Phase phase_ = Phase::kReading;
  std::string peer_;
  std::string identity_;
  std::optional<CallLimits::Place> place_;
  CallLimits::Turn turn_;       // To read; of a short call: until it has been dealt with.
  CallLimits::Turn long_turn_;  // For a long request to be dealt with, or a long reply.
  absl::Time read_deadline_;
  std::optional<CallWatch::Span> span_;
  grpc::ByteBuffer message_;
  int64_t reply_bytes_ = 0;
  std::function<absl::Status()> make_reply_;
  std::function<grpc::ByteBuffer()> reply_;

  absl::Mutex mu_;
  std::shared_ptr<CallLimits::TurnRequest> turn_request_ ABSL_GUARDED_BY(mu_);
  bool is_done_ ABSL_GUARDED_BY(mu_) = false;
  bool is_reading_ ABSL_GUARDED_BY(mu_) = false;  // For the handler.
  bool can_read_ ABSL_GUARDED_BY(mu_) = true;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool can_write_ ABSL_GUARDED_BY(mu_) = true;

  // The server's.
  absl::Time ending_since_;
  std::optional<std::list<ServedCall*>::iterator> place_in_ending_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVED_CALL_H_
