#include "coordinator/service/served_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/steady_time.h"
#include "coordinator/service/handler_pool.h"
#include "proto/grpc_status.h"

namespace tessera::coordinator {
namespace {

// A message of at most this size costs no more than the call itself.
constexpr int64_t kShortBytes = 64 << 10;

absl::Status Gone() { return absl::CancelledError("the caller is gone"); }

}  // namespace

ServedCall::ServedCall(CallHost* host) : host_(host) {
  for (size_t i = 0; i < tags_.size(); ++i) tags_[i] = {this, static_cast<Event>(i)};
  // gRPC requires this before the call is requested.
  context_.AsyncNotifyWhenDone(TagOf(Event::kDone));
}

void ServedCall::Await(CallHost* host) {
  auto* const call = new ServedCall(host);
  host->Request(&call->context_, &call->stream_, call->TagOf(Event::kArrived));
}

void ServedCall::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  CallHost* const host = host_;
  delete this;
  // Last, because the server may be destroyed once no call is left.
  host->NoteGone();
}

// Each operation of gRPC's is begun with a reference of its own, which its event gives back.
void ServedCall::OnEvent(void* tag, bool ok) {
  ServedCall* const call = static_cast<Tag*>(tag)->call;
  call->refs_.load(std::memory_order_acquire);  // Sees what was done before the operation began.
  switch (static_cast<Tag*>(tag)->event) {
    case Event::kArrived:
      // For tests: another thread may have the event kDone before this one goes on.
      FaultPoint("call.arrived").IgnoreError();
      if (ok) {
        call->OnArrived();
      } else {
        call->Unref();  // The server stops, and of what has not arrived there is no event kDone.
      }
      break;
    case Event::kDone:
      call->OnDone();
      break;
    case Event::kRead:
      call->OnRead(ok);
      break;
    case Event::kWritten:
      call->OnWritten(ok);
      break;
    case Event::kFinished:
      call->OnFinished();
      break;
  }
  call->Unref();
}

void ServedCall::OnArrived() {
  // Replaces this one, so that gRPC can always hand over as many calls.
  host_->AwaitCall();
  peer_ = context_.peer();
  if (peer_ == "unknown") return Finish(absl::UnavailableError("the connection has ended"));
  method_ = host_->Find(context_.method());
  if (method_ == nullptr || method_->run == nullptr) return SendFixed();
  const Gate& gate = host_->gate();
  absl::StatusOr<Gate::Entered> entered = gate.Enter({&context_, method_->name}, method_->kind);
  if (!entered.ok()) return Finish(entered.status());
  identity_ = std::move(entered->identity);
  place_.emplace(std::move(entered->place));
  read_deadline_ = SteadyNow() + gate.times().request;
  // Workers need no turn.
  if (method_->kind == CallKind::kOfWorker) return ReadFirst();
  AwaitTurn(CallLimits::Of::kReading, read_deadline_);
}

void ServedCall::OnDone() {
  std::shared_ptr<CallLimits::TurnRequest> request;
  {
    absl::MutexLock lock(&mu_);
    is_done_ = true;
    request = turn_request_;
  }
  if (request != nullptr) EndWait(request.get());
}

// Where it takes too long, or the client goes, the call is cancelled, and OnDone ends the wait.
void ServedCall::AwaitTurn(CallLimits::Of what, absl::Time deadline) {
  const Gate& gate = host_->gate();
  // Before Ask, within which the turn may come: OnTurn ends the span.
  span_.emplace(gate.watch(), &context_, deadline, CallLimits::HasNoTurn(identity_, what),
                /*may_be_large=*/what == CallLimits::Of::kHandling);
  // Given back where the turn comes, or in EndWait where it does not.
  Ref();
  const auto request = std::make_shared<CallLimits::TurnRequest>(gate.calls(), identity_, what,
                                                                 [this](CallLimits::Turn turn) {
                                                                   OnTurn(std::move(turn));
                                                                   Unref();
                                                                 });
  {
    absl::MutexLock lock(&mu_);
    turn_request_ = request;
  }
  request->Ask();
  // The client may have gone before turn_request_ was set. Then OnDone found nothing to end.
  bool is_done = false;
  {
    absl::MutexLock lock(&mu_);
    is_done = is_done_;
  }
  if (is_done) EndWait(request.get());
}

void ServedCall::EndWait(CallLimits::TurnRequest* request) {
  if (!request->Withdraw()) return;
  const absl::Status ended = span_->Ended();
  const absl::Status status = ended.ok() ? Gone() : ended;
  span_.reset();
  phase_ == Phase::kReplying ? Finish(status) : EndReading(status);
  Unref();
}

void ServedCall::OnTurn(CallLimits::Turn turn) {
  span_.reset();
  if (phase_ == Phase::kReading) {
    turn_ = std::move(turn);
    return ReadFirst();
  }
  long_turn_ = std::move(turn);
  Run(host_->PoolOf(/*has_own_thread=*/false),
      phase_ == Phase::kReplying ? &ServedCall::SendReply : &ServedCall::Handle);
}

void ServedCall::Run(HandlerPool* pool, void (ServedCall::*step)()) {
  Ref();
  const absl::Status status = pool->Run([this, step] {
    (this->*step)();
    Unref();
  });
  if (status.ok()) return;
  Finish(status);
  Unref();
}

std::string ServedCall::Who() const { return absl::StrCat("client '", identity_, "'"); }

void ServedCall::ReadFirst() {
  const Gate& gate = host_->gate();
  // A message of any size may come, since gRPC checks its limit only after the last byte.
  span_.emplace(
      gate.watch(), &context_, read_deadline_,
      absl::DeadlineExceededError(absl::StrCat(Who(), " has not sent the request within ",
                                               absl::FormatDuration(gate.times().request))),
      /*may_be_large=*/true);
  Ref();
  stream_.Read(&message_, TagOf(Event::kRead));
}

absl::Status ServedCall::CheckFirst(bool ok) {
  const absl::Status ended = span_->Ended();
  span_.reset();
  if (!ok)
    return ended.ok() ? absl::InvalidArgumentError("the call ended before its first message")
                      : ended;
  const auto bytes = static_cast<int64_t>(message_.Length());
  if (bytes > method_->max_request_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the request has ", bytes, " bytes, and may have ", method_->max_request_bytes));
  }
  // A short call keeps its turn until it has been dealt with, so that of each client few have a
  // thread or a long request.
  if (method_->kind == CallKind::kShort) return absl::OkStatus();
  turn_ = nullptr;
  return method_->kind == CallKind::kWaiting ? place_->Hold(bytes) : absl::OkStatus();
}

void ServedCall::EndReading(const absl::Status& status) {
  Finish(host_->gate().NoteRead({&context_, method_->name}, identity_, status));
}

void ServedCall::OnRead(bool ok) {
  // The handler waits for it in Read.
  if (phase_ == Phase::kHandled) {
    absl::MutexLock lock(&mu_);
    is_reading_ = false;
    can_read_ = ok;
    return;
  }
  if (const absl::Status status = CheckFirst(ok); !status.ok()) return EndReading(status);
  if (method_->kind == CallKind::kShort && message_.Length() > kShortBytes) {
    phase_ = Phase::kQueued;
    return AwaitTurn(CallLimits::Of::kHandling, SteadyNow() + host_->gate().times().request);
  }
  Run(host_->PoolOf(method_->has_own_thread), &ServedCall::Handle);
}

void ServedCall::Handle() {
  // Before the handler, since the events of its Read and Write go by it.
  phase_ = Phase::kHandled;
  const absl::Status status = method_->run(this);
  // The handler is done with the request, which must not take memory while the reply waits.
  message_.Clear();
  long_turn_ = nullptr;
  turn_ = nullptr;  // A reply that is not taken keeps none of the client's requests waiting.
  if (!status.ok() || reply_ == nullptr) return Finish(status);
  phase_ = Phase::kReplying;
  if (reply_bytes_ <= kShortBytes) return SendReply();
  AwaitTurn(CallLimits::Of::kReplying, SteadyNow() + host_->gate().times().reply);
}

void ServedCall::MakeReplyInTurn(int64_t bytes, std::function<absl::Status()> make) {
  reply_bytes_ = bytes;
  make_reply_ = std::move(make);
}

absl::Status ServedCall::LateReply() const {
  return absl::DeadlineExceededError(
      absl::StrCat(Who(), " has not taken the reply within ",
                   absl::FormatDuration(host_->gate().times().reply)));
}

// A long reply keeps the call's place until it is sent.
void ServedCall::SendReply() {
  // In its turn, so that of one client one long reply at a time is in memory.
  if (const auto make = std::exchange(make_reply_, nullptr); make != nullptr) {
    if (const absl::Status made = make(); !made.ok()) return Finish(made);
  }
  message_ = reply_();
  reply_ = nullptr;
  const absl::Time deadline = SteadyNow() + host_->gate().times().reply;
  const bool is_long = long_turn_ != nullptr;
  span_.emplace(host_->gate().watch(), &context_, deadline, LateReply(), is_long);
  Ref();
  // The status follows in OnWritten, so that the place is kept until the client has the reply.
  if (is_long) {
    stream_.Write(message_, TagOf(Event::kWritten));
  } else {
    place_.reset();
    host_->NoteHandled(method_, absl::StatusCode::kOk);
    host_->NoteEnding(&ending_);
    stream_.WriteAndFinish(message_, grpc::WriteOptions(), grpc::Status::OK,
                           TagOf(Event::kFinished));
  }
}

void ServedCall::OnWritten(bool ok) {
  if (phase_ == Phase::kHandled) {
    absl::MutexLock lock(&mu_);
    is_writing_ = false;
    can_write_ = ok;
    return;
  }
  message_.Clear();
  Finish(ok ? absl::OkStatus() : Gone());
}

// The client may make another call as soon as it sees the status: so the place is given back first.
// A status goes out unless the client reads nothing at all, and then keepalive ends its connection.
void ServedCall::Finish(const absl::Status& status) {
  long_turn_ = nullptr;
  turn_ = nullptr;
  place_.reset();
  host_->NoteHandled(method_, status.code());
  host_->NoteEnding(&ending_);
  Ref();
  stream_.Finish(ToGrpcStatus(status), TagOf(Event::kFinished));
}

void ServedCall::SendFixed() {
  if (method_ == nullptr) return Finish(absl::UnimplementedError(""));
  if (!method_->fixed.ok()) return Finish(method_->fixed.status());
  reply_ = [this] { return *method_->fixed; };
  SendReply();
}

void ServedCall::OnFinished() {
  span_.reset();
  host_->NoteEnded(&ending_);
}

bool ServedCall::Read(grpc::ByteBuffer* message) {
  {
    absl::MutexLock lock(&mu_);
    if (!can_read_) return false;
    is_reading_ = true;
  }
  Ref();
  // Without a deadline: gRPC ends the read when the client goes or the call is cancelled.
  stream_.Read(message, TagOf(Event::kRead));
  const auto is_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !is_reading_; };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&is_over));
  return can_read_;
}

bool ServedCall::Write(const grpc::ByteBuffer& message) {
  {
    absl::MutexLock lock(&mu_);
    if (!can_write_) return false;
    is_writing_ = true;
  }
  Ref();
  stream_.Write(message, TagOf(Event::kWritten));
  const auto is_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !is_writing_; };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&is_over));
  return can_write_;
}

absl::Status ServedCall::WriteInTime(const grpc::ByteBuffer& message) {
  const Gate& gate = host_->gate();
  const CallWatch::Span span(gate.watch(), &context_, SteadyNow() + gate.times().reply, LateReply(),
                             /*may_be_large=*/long_turn_ != nullptr);
  if (Write(message)) return absl::OkStatus();
  const absl::Status ended = span.Ended();
  return ended.ok() ? Gone() : ended;
}

absl::Status ServedCall::TakeReplyTurn(int64_t bytes) {
  if (bytes <= kShortBytes) return absl::OkStatus();
  const Gate& gate = host_->gate();
  absl::StatusOr<CallLimits::Turn> turn =
      gate.calls()->TakeTurn(identity_, CallLimits::Of::kReplying, SteadyNow() + gate.times().reply,
                             [this] { return context_.IsCancelled(); });
  if (turn.ok()) long_turn_ = *std::move(turn);
  return turn.status();
}

}  // namespace tessera::coordinator
