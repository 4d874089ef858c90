#include "worker/agent/state_relay.h"

#include <atomic>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "base/yield_to_others.h"
#include "grpcpp/grpcpp.h"
#include "job/job_codec.h"
#include "proto/grpc_status.h"
#include "proto/live_state.grpc.pb.h"
#include "worker/agent/relay_channel.h"

namespace tessera {
namespace {

// A client that takes no piece for so long is not one that a copy can be spared.
constexpr absl::Duration kLull = absl::Milliseconds(20);

// For a rank that is one step later than another worker's ranks.
constexpr absl::Duration kStepPatience = absl::Seconds(10);

// Of an event that says so.
template <typename Event>
void SetProgress(const StateSnapshot::Progress& progress, Event* event) {
  event->set_trained_step(progress.trained_step);
  event->mutable_update_counts()->Add(progress.update_counts.begin(), progress.update_counts.end());
  for (const HyperParameters& group : progress.groups)
    EncodeHyperParameters(group, event->add_groups());
}

absl::StatusOr<StateSnapshot::Request> Decode(const v1::LiveHold& hold,
                                              const std::string& spool_folder) {
  StateSnapshot::Request request;
  request.parameters.assign(hold.parameters().begin(), hold.parameters().end());
  request.moments = hold.moments();
  request.buffers.assign(hold.buffers().begin(), hold.buffers().end());
  request.spool_folder = spool_folder;
  if (hold.dtype() != v1::DTYPE_UNSPECIFIED) {
    ASSIGN_OR_RETURN(request.dtype, DecodeDType(hold.dtype()));
  }
  return request;
}

}  // namespace

class StateRelay::Session : public RelaySession {
 public:
  Session(const Options* options, v1::ServeState command)
      : options_(options), command_(std::move(command)) {}

  absl::Status Run() override {
    const absl::Status status = Serve();
    // The hold ends before the session counts as done.
    source_.reset();
    snapshot_.reset();
    call_.End();
    return status;
  }
  void Cancel() override {
    cancelled_.store(true);
    call_.Cancel();
  }

 private:
  using Stream = grpc::ClientReaderWriter<v1::LiveEvent, v1::LiveCommand>;

  absl::Status Serve() {
    ASSIGN_OR_RETURN(const auto channel, OpenRelayChannel(options_->coordinator));
    const auto stub = v1::LiveRelay::NewStub(channel);
    const std::unique_ptr<Stream> stream = stub->Relay(call_.context());
    auto reader = StartThread("a reading's commands", [&] { ReadCommands(stream.get()); });
    absl::Status status = reader.status();
    if (status.ok()) status = Answer(stream.get());
    snapshot_.reset();  // What is held is let go before the coordinator's end is awaited.
    if (status.ok()) {
      stream->WritesDone();
    } else {
      // The reader ends with the call.
      call_.Cancel();
    }
    // Before Finish, which no other call of the stream may meet.
    if (reader.ok()) reader->join();
    const absl::Status end = FromGrpcStatus(stream->Finish());
    if (sent_all_) return absl::OkStatus();  // The coordinator ends the stream once it has it all.
    return status.ok() ? end : status;
  }

  void ReadCommands(Stream* stream) {
    v1::LiveCommand command;
    while (stream->Read(&command)) {
      absl::MutexLock lock(&mu_);
      commands_.push_back(std::move(command));
    }
    // Cancelled before `ended_`: waits in the snapshot look at the first one only.
    cancelled_.store(true);
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }

  std::optional<v1::LiveCommand> NextCommand() {
    absl::MutexLock lock(&mu_);
    const auto ready = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_ || !commands_.empty(); };
    mu_.Await(absl::Condition(&ready));
    if (commands_.empty()) return std::nullopt;
    v1::LiveCommand command = std::move(commands_.front());
    commands_.pop_front();
    return command;
  }

  // Until the pieces are sent, something failed and was told, or the stream ended.
  absl::Status Answer(Stream* stream) {
    v1::LiveEvent hello;
    hello.mutable_hello()->set_session(command_.session());
    hello.mutable_hello()->set_worker_id(options_->worker_id);
    if (!stream->Write(hello)) return absl::OkStatus();  // Finish() says why.
    while (const std::optional<v1::LiveCommand> command = NextCommand()) {
      if (command->has_read()) return SendFrozen(command->read(), stream);
      if (command->has_serve()) return ServeFetch(command->serve(), stream);
      v1::LiveEvent event;
      const absl::Status status =
          command->has_copy() ? Copy(command->copy(), &event) : Hold(command->hold(), &event);
      // Told to the coordinator, which tries again. The stream ends well.
      if (!status.ok()) SetFailure(status, &event);
      if (!stream->Write(event) || !status.ok()) return absl::OkStatus();
      // A hold waits for the coordinator's choice of the step. After a copy nothing more is asked.
      if (command->has_copy()) return SendPieces(stream);
    }
    return absl::OkStatus();
  }

  absl::Status Hold(const v1::LiveHold& hold, v1::LiveEvent* event) {
    ASSIGN_OR_RETURN(const StateSnapshot::Request request, Decode(hold, options_->spool_folder));
    // A hold before this one on the stream ends here.
    ASSIGN_OR_RETURN(snapshot_, options_->open(command_.job_id(), command_.generation(), request));
    ASSIGN_OR_RETURN(const int64_t step, snapshot_->Hold());
    event->mutable_held()->set_step(step);
    return absl::OkStatus();
  }

  absl::StatusOr<StateSnapshot::Progress> Begin(int64_t step) {
    // The order of commands is the peer's word.
    if (snapshot_ == nullptr) return absl::InvalidArgumentError("a copy before a hold");
    return snapshot_->Begin(step, kStepPatience, [this] { return cancelled_.load(); });
  }

  absl::Status Copy(const v1::LiveCopy& copy, v1::LiveEvent* event) {
    ASSIGN_OR_RETURN(const StateSnapshot::Progress progress, Begin(copy.step()));
    RETURN_IF_ERROR(snapshot_->Copy([this] { return cancelled_.load(); }));
    SetProgress(progress, event->mutable_copied());
    return absl::OkStatus();
  }

  absl::Status SendPieces(Stream* stream) {
    v1::LiveEvent event;
    while (true) {
      ASSIGN_OR_RETURN(const auto piece, snapshot_->Next([&event](int64_t size_bytes) {
        std::string* data = event.mutable_piece()->mutable_data();
        data->resize(size_bytes);
        return data->data();
      }));
      if (!piece.has_value()) {
        sent_all_ = true;
        return absl::OkStatus();
      }
      event.mutable_piece()->set_offset_elements(piece->offset_elements);
      if (!stream->Write(event)) return absl::OkStatus();
    }
  }

  // For a client that fetches it itself. Everything that fails is told.
  absl::Status ServeFetch(const v1::LiveServe& serve, Stream* stream) {
    absl::Status status = BeginFetch(serve, stream);
    if (source_ != nullptr) {
      if (status.ok()) status = CopyAndAwaitFetch(serve, stream);
      // Removed before it is closed: no new client finds it, and the one that has it is cancelled.
      options_->sources->Remove(command_.session());
      source_->Close();
    }
    v1::LiveEvent event;
    event.mutable_sent();
    if (!status.ok()) SetFailure(status, &event);
    sent_all_ = stream->Write(event) && status.ok();
    return absl::OkStatus();
  }

  absl::Status BeginFetch(const v1::LiveServe& serve, Stream* stream) {
    ASSIGN_OR_RETURN(const StateSnapshot::Progress progress, Begin(serve.step()));
    source_ = std::make_shared<LiveSource>(snapshot_);
    // Before its addresses are told: the client may come at once.
    options_->sources->Add(command_.session(), source_);
    v1::LiveEvent event;
    SetProgress(progress, event.mutable_serving());
    for (const std::string& address : options_->fetch_addresses())
      event.mutable_serving()->add_addresses(address);
    return Tell(event, stream);
  }

  absl::Status CopyAndAwaitFetch(const v1::LiveServe& serve, Stream* stream) {
    // A client that keeps taking pieces needs no copy, unless training will not wait for it.
    source_->AwaitLull(kLull, [this] { return cancelled_.load() || snapshot_->IsTrainingOn(); });
    // It competes with training for the cores.
    YieldToOthers();  // Of this thread, which ends with the session.
    RETURN_IF_ERROR(snapshot_->Copy([this] { return cancelled_.load(); }));
    v1::LiveEvent event;
    // The coordinator learns that training is not held up any more.
    event.mutable_released();
    RETURN_IF_ERROR(Tell(event, stream));
    return source_->AwaitEnd(absl::Milliseconds(serve.client_timeout_ms()),
                             [this] { return cancelled_.load(); });
  }

  static absl::Status Tell(const v1::LiveEvent& event, Stream* stream) {
    return stream->Write(event) ? absl::OkStatus() : absl::CancelledError("the reading was ended");
  }

  static void SetFailure(const absl::Status& status, v1::LiveEvent* event) {
    event->mutable_failure()->set_code(status.raw_code());
    event->mutable_failure()->set_message(PrintableUtf8(status.message()));
  }

  absl::Status SendFrozen(const v1::LiveRead& read, Stream* stream) {
    v1::LiveEvent event;
    const absl::Status status = Frozen(read, stream, &event);
    if (status.ok()) return status;
    SetFailure(status, &event);
    stream->Write(event);
    return absl::OkStatus();
  }

  absl::Status Frozen(const v1::LiveRead& read, Stream* stream, v1::LiveEvent* event) {
    ASSIGN_OR_RETURN(const std::unique_ptr<FrozenState> state,
                     options_->open_frozen(command_.job_id(), command_.generation(), read.step()));
    // A rank may still be redoing the decided step at which the job is frozen.
    RETURN_IF_ERROR(state->Await(kStepPatience, [this] { return cancelled_.load(); }));
    *event->mutable_copied() = state->Progress();
    if (!stream->Write(*event)) return absl::OkStatus();
    for (const v1::LiveRange& range : read.ranges()) {
      // The numbers come from the wire. Read refuses ranges that do not exist.
      for (int64_t done = 0; done < range.numel();) {
        ASSIGN_OR_RETURN(const int64_t elements, state->Read(range, done, event->mutable_piece()));
        if (!stream->Write(*event)) return absl::OkStatus();
        done += elements;
      }
    }
    return absl::OkStatus();
  }

  const Options* const options_;
  const v1::ServeState command_;
  RelayCall call_;
  // Of the session's thread.
  std::shared_ptr<StateSnapshot> snapshot_;
  std::shared_ptr<LiveSource> source_;
  bool sent_all_ = false;
  std::atomic<bool> cancelled_{false};
  absl::Mutex mu_;
  std::deque<v1::LiveCommand> commands_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

void StateRelay::Serve(const v1::ServeState& command) {
  sessions_.Serve(std::make_unique<Session>(&options_, command), "a reading of live state",
                  command.job_id());
}

}  // namespace tessera
