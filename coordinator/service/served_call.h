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
// The handler of a stream gets the call as a CallStream (serve.h). A call has one handler.
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/call_limits.h"
#include "coordinator/service/call_watch.h"
#include "coordinator/service/gate.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"

namespace tessera::coordinator {

class HandlerPool;
class ServedCall;

// Of the first message of a call, but for methods that say otherwise.
constexpr int64_t kMaxRequestBytes = int64_t{1} << 20;

struct Method {
  std::string name;  // As the log has it.
  CallKind kind = CallKind::kShort;
  bool has_own_thread = false;
  int64_t max_request_bytes = kMaxRequestBytes;
  std::function<absl::Status(ServedCall*)> run;  // Null: every caller gets `fixed`.
  absl::StatusOr<grpc::ByteBuffer> fixed = absl::UnimplementedError("");
};

// A call in its server's list of those whose status is being sent. The server's lock guards it.
struct EndingCall {
  ServedCall* const call;
  absl::Time since = {};
  std::optional<std::list<EndingCall*>::iterator> place = std::nullopt;  // None: not in the list.
};

// What a call needs of the server that it is a call of. Thread-safe.
class CallHost {
 public:
  virtual const Gate& gate() const = 0;
  // Null: there is no such method.
  virtual const Method* Find(const std::string& path) const = 0;
  // Of handlers: those with a thread of their own, or those that are answered at once.
  virtual HandlerPool* PoolOf(bool has_own_thread) = 0;

  // Asks gRPC for a call: the event of `tag` says that it has come.
  virtual void Request(grpc::GenericServerContext* context,
                       grpc::GenericServerAsyncReaderWriter* stream, void* tag) = 0;
  // Makes the next call that waits for gRPC.
  virtual void AwaitCall() = 0;
  // A call that was awaited is no more, whether or not it came.
  virtual void NoteGone() = 0;

  // How a call was answered; `method`: null where it named none that exists.
  virtual void NoteHandled(const Method* method, absl::StatusCode code) = 0;
  // Its status is being sent, and no more is known of it than that; then the status is sent.
  virtual void NoteEnding(EndingCall* ending) = 0;
  virtual void NoteEnded(EndingCall* ending) = 0;

 protected:
  ~CallHost() = default;
};

class ServedCall {
 public:
  // Asks `host`, which outlives this, for a call. It deletes itself.
  static void Await(CallHost* host);
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

  // For the server: while a reference is held, the call exists, and its connection's descriptor is
  // not reused.
  void Ref() { refs_.fetch_add(1, std::memory_order_acq_rel); }
  void Unref();
  const std::string& peer() const { return peer_; }

 private:
  enum class Event { kArrived, kDone, kRead, kWritten, kFinished };
  struct Tag {
    ServedCall* call;
    Event event;
  };
  enum class Phase { kReading, kQueued, kHandled, kReplying };

  explicit ServedCall(CallHost* host);
  ~ServedCall() = default;

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

  CallHost* const host_;
  std::array<Tag, 5> tags_;
  std::atomic<int> refs_{2};  // Of the events kArrived and kDone.
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

  EndingCall ending_{this};
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SERVED_CALL_H_
