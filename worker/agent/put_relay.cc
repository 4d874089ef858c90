#include "worker/agent/put_relay.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "grpcpp/grpcpp.h"
#include "proto/grpc_status.h"
#include "proto/live_put.grpc.pb.h"
#include "worker/agent/relay_channel.h"

namespace tessera {
namespace {

// How often a put that is offered is looked at.
constexpr absl::Duration kLook = absl::Milliseconds(20);

}  // namespace

class PutRelay::Session : public RelaySession {
 public:
  Session(const Options* options, v1::StagePut command)
      : options_(options), command_(std::move(command)) {}

  absl::Status Run() override {
    const absl::Status status = Serve();
    stage_.reset();  // What was stored goes with it.
    staged_.reset();
    call_.End();
    return status;
  }
  void Cancel() override { call_.Cancel(); }

 private:
  using Stream = grpc::ClientReaderWriter<v1::PutEvent, v1::PutCommand>;

  absl::Status Serve() {
    ASSIGN_OR_RETURN(const auto channel, OpenRelayChannel(options_->coordinator));
    const auto stub = v1::LivePutRelay::NewStub(channel);
    const std::unique_ptr<Stream> stream = stub->Relay(call_.context());
    const absl::Status status = Talk(stream.get());
    if (!status.ok()) {
      v1::PutEvent event;
      event.mutable_failure()->set_code(status.raw_code());
      event.mutable_failure()->set_message(PrintableUtf8(status.message()));
      // If it cannot be written either, the stream's end says why.
      stream->Write(event);
    }
    stream->WritesDone();
    // Until the coordinator has heard the last word.
    if (reader_.joinable()) {
      reader_.join();
    } else {
      v1::PutCommand command;
      while (stream->Read(&command)) continue;
    }
    const absl::Status end = FromGrpcStatus(stream->Finish());
    return status.ok() ? end : status;
  }

  // OK: all is said, or the stream ended. An error is still to be told.
  absl::Status Talk(Stream* stream) {
    v1::PutEvent event;
    event.mutable_hello()->set_session(command_.session());
    event.mutable_hello()->set_worker_id(options_->worker_id);
    if (!stream->Write(event)) return absl::OkStatus();  // Finish() says why.
    v1::PutCommand command;
    while (stream->Read(&command)) {
      event.Clear();
      switch (command.command_case()) {
        case v1::PutCommand::kStage:
          RETURN_IF_ERROR(Stage(command.stage()));
          event.mutable_ready();
          break;
        case v1::PutCommand::kPiece:
          // The order of commands is the peer's word, here and below.
          if (stage_ == nullptr) return absl::InvalidArgumentError("a piece without a put");
          RETURN_IF_ERROR(stage_->Take(command.piece()));
          continue;
        case v1::PutCommand::kSeal:
          RETURN_IF_ERROR(Seal());
          event.mutable_staged();
          break;
        case v1::PutCommand::kOffer:
          if (staged_ == nullptr) return absl::InvalidArgumentError("an offer without a put");
          return Offer(stream);
        case v1::PutCommand::kWithdraw:
          event.mutable_withdrawn();
          stream->Write(event);
          return absl::OkStatus();
        case v1::PutCommand::COMMAND_NOT_SET:
          // A newer coordinator: what it means is unknown, so nothing is guessed.
          return absl::InvalidArgumentError("a command that this worker does not know");
      }
      if (!stream->Write(event)) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::Status Stage(const v1::PutStage& request) {
    ASSIGN_OR_RETURN(const std::shared_ptr<HostedJob> job,
                     options_->find(command_.job_id(), command_.generation()));
    ASSIGN_OR_RETURN(stage_, PutStage::Create(job->regions(), request, options_->spool_folder));
    // Weak: a session that waits must not keep a dropped job's memory.
    job_ = job;
    return absl::OkStatus();
  }

  absl::Status Seal() {
    if (stage_ == nullptr) return absl::InvalidArgumentError("a seal without a put");
    ASSIGN_OR_RETURN(staged_, stage_->Seal());
    stage_.reset();
    return absl::OkStatus();
  }

  absl::Status Offer(Stream* stream) {
    const uint64_t put = staged_->put;
    {
      // Released before the wait below: a job that is dropped meanwhile can end.
      const std::shared_ptr<HostedJob> job = job_.lock();
      if (job == nullptr) return Dropped();
      // The job has the file from here on. This session only follows what becomes of it.
      job->OfferPut(std::move(staged_));
    }
    auto reader = StartThread("a put's commands", [this, stream] { AwaitWithdrawal(stream); });
    if (reader.ok()) {
      reader_ = *std::move(reader);
      return Follow(stream, put);
    }
    const std::shared_ptr<HostedJob> job = job_.lock();
    // Nobody would read the coordinator's withdrawal.
    if (job != nullptr) job->WithdrawPut(put);
    return reader.status();
  }

  // The coordinator sends nothing else once it has offered.
  void AwaitWithdrawal(Stream* stream) {
    v1::PutCommand command;
    bool more = true;
    while (more) {
      more = stream->Read(&command);
      // The end of the stream withdraws it as well: nobody would learn what came of it.
      absl::MutexLock lock(&mu_);
      wanted_ = false;
      ended_ = !more;
    }
  }

  absl::Status Dropped() const {
    return absl::UnavailableError(absl::StrCat(
        "worker '", options_->worker_id, "' does not hold job '", command_.job_id(), "' any more"));
  }

  // Until it is applied, or no rank will vote for it any more.
  absl::Status Follow(Stream* stream, uint64_t put) {
    bool withdrawn = false;
    while (true) {
      HostedJob::PutProgress progress;
      {
        const std::shared_ptr<HostedJob> job = job_.lock();
        if (job == nullptr) return Dropped();
        // A withdrawal may come too late. Then the put is decided, and is reported as applied.
        if (!withdrawn && !IsWanted()) {
          job->WithdrawPut(put);
          withdrawn = true;
        }
        progress = job->ProgressOfPut(put);
        if (progress.is_applied) job->WithdrawPut(put);  // What it was read from may go.
      }
      v1::PutEvent event;
      if (progress.is_applied) {
        event.mutable_applied()->set_step(progress.decided->step);
        event.mutable_applied()->set_trained_step(progress.decided->trained_step);
      } else if (progress.is_over && !progress.decided.has_value()) {
        // Over and not decided, looked at in this order by ProgressOf: no rank can apply it now.
        if (!progress.failure.empty()) return absl::DataLossError(progress.failure);
        event.mutable_withdrawn();
      }
      if (event.event_case() != v1::PutEvent::EVENT_NOT_SET) {
        stream->Write(event);
        return absl::OkStatus();
      }
      absl::MutexLock lock(&mu_);
      const auto news = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return ended_ || (!wanted_ && !withdrawn);
      };
      // Polled: a put is decided by words in shared memory, which wake nobody here.
      AwaitWithTimeout(&mu_, absl::Condition(&news), kLook);
      // Nobody is there to be told, and what was offered is withdrawn.
      if (ended_ && withdrawn) return absl::OkStatus();
    }
  }

  bool IsWanted() {
    absl::MutexLock lock(&mu_);
    return wanted_;
  }

  const Options* const options_;
  const v1::StagePut command_;
  RelayCall call_;
  std::weak_ptr<HostedJob> job_;
  std::unique_ptr<PutStage> stage_;  // Of the session's thread, as what follows.
  std::shared_ptr<const StagedPut> staged_;
  std::thread reader_;  // Once it is offered.
  absl::Mutex mu_;
  bool wanted_ ABSL_GUARDED_BY(mu_) = true;  // Not withdrawn by the coordinator.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // The stream.
};

void PutRelay::Serve(const v1::StagePut& command) {
  sessions_.Serve(std::make_unique<Session>(&options_, command), "a put", command.job_id());
}

}  // namespace tessera
