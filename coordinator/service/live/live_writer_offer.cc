// LiveWriter: the outcome of a put that all workers have.
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "coordinator/service/live/live_writer.h"

namespace tessera::coordinator {
namespace {

// How long to listen to one worker before the next one.
constexpr absl::Duration kListen = absl::Milliseconds(20);

}  // namespace

absl::Status LiveWriter::GivenUp(absl::Time deadline) {
  RETURN_IF_ERROR(watch_.reason());
  if (client_.cancelled()) return absl::CancelledError("the client is gone");
  if (SteadyNow() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("job '", job_.value(),
                                                  "': its trainers took no step within ",
                                                  absl::FormatDuration(step_timeout_)));
}

std::optional<WorkerPut> LiveWriter::Hear(Worker* worker) {
  absl::StatusOr<v1::PutEvent> event =
      worker->line->Next(SteadyNow() + kListen, [] { return false; });
  if (absl::IsDeadlineExceeded(event.status()) && !worker->line->has_failed()) return std::nullopt;
  if (event.ok() && event->has_applied()) {
    reply_.set_step(event->applied().step());
    reply_.set_trained_step(event->applied().trained_step());
    return WorkerPut::kApplied;
  }
  if (event.ok() && event->has_withdrawn()) return WorkerPut::kOut;
  worker->why = event.ok() ? absl::UnavailableError(absl::StrCat("worker '", worker->line->worker(),
                                                                 "' answered out of order"))
                           : event.status();
  // A worker that reports a failure votes for the put no more. Of one whose stream only ended,
  // nobody knows whether it had applied it.
  return worker->line->has_failed() ? WorkerPut::kOut : WorkerPut::kLost;
}

absl::StatusOr<v1::PutReply> LiveWriter::Offer() {
  v1::PutCommand offer, withdraw;
  offer.mutable_offer();
  withdraw.mutable_withdraw();
  // Ranks end a vote within their timeout.
  OfferedPut put(workers_.size(), has_replicas_, 2 * collective_timeout_ + times_.worker);
  // From the first offer on the put may be applied, so these sends do not end with the client.
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    worker.why = worker.line->Send(offer, SteadyNow() + times_.worker, [] { return false; });
    if (!worker.why.ok()) put.Report(i, WorkerPut::kOut);  // It never receives the offer.
  }
  const absl::Time step_deadline = SteadyNow() + step_timeout_;
  absl::Status given_up;
  while (true) {
    if (given_up.ok()) given_up = GivenUp(step_deadline);
    const PutVerdict verdict = put.Look(given_up.ok(), SteadyNow());
    if (verdict == PutVerdict::kWithdraw) {
      for (const Worker& worker : workers_)
        (void)worker.line->Send(withdraw, SteadyNow() + times_.worker, [] { return false; });
    } else if (verdict != PutVerdict::kWait) {
      return Conclude(verdict, given_up);
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!put.IsPending(i)) continue;
      const std::optional<WorkerPut> news = Hear(&workers_[i]);
      if (news.has_value()) put.Report(i, *news);
    }
  }
}

absl::StatusOr<v1::PutReply> LiveWriter::Conclude(PutVerdict verdict,
                                                  const absl::Status& given_up) {
  if (verdict == PutVerdict::kSet) {
    reply_.set_generation(generation_.value());
    reply_.set_num_tensors(plan_.num_tensors);
    reply_.set_size_bytes(plan_.size_bytes);
    return reply_;
  }
  absl::Status why = given_up;
  for (const Worker& worker : workers_) {
    if (why.ok()) why = worker.why;
  }
  if (why.ok()) why = absl::UnavailableError("the workers gave it up");
  // All workers are out, and a put needs the votes of all ranks (ADR 30).
  if (verdict == PutVerdict::kNotSet)
    return absl::Status(why.code(), absl::StrCat(why.message(), "; nothing was changed"));
  return absl::UnavailableError(absl::StrCat(
      why.message(), "; whether the values were set is not known: all ranks have them, or none"));
}

}  // namespace tessera::coordinator
