// LiveWriter: the outcome of a put that all workers have.
#include <algorithm>
#include <utility>
#include <vector>

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

void LiveWriter::Hear(Worker* worker) {
  absl::StatusOr<v1::PutEvent> event =
      worker->line->Next(SteadyNow() + kListen, [] { return false; });
  if (absl::IsDeadlineExceeded(event.status()) && !worker->line->has_failed()) return;
  if (event.ok() && event->has_applied()) {
    worker->state = WorkerPut::kApplied;
    reply_.set_step(event->applied().step());
    reply_.set_trained_step(event->applied().trained_step());
  } else if (event.ok() && event->has_withdrawn()) {
    worker->state = WorkerPut::kOut;
  } else {
    // A worker that reports a failure votes for the put no more. Of one whose stream only ended,
    // nobody knows whether it had applied it.
    worker->state = worker->line->has_failed() ? WorkerPut::kOut : WorkerPut::kLost;
    worker->why = event.ok() ? absl::UnavailableError(absl::StrCat(
                                   "worker '", worker->line->worker(), "' answered out of order"))
                             : event.status();
  }
}

absl::StatusOr<v1::PutReply> LiveWriter::Offer() {
  v1::PutCommand offer, withdraw;
  offer.mutable_offer();
  withdraw.mutable_withdraw();
  // From the first offer on the put may be applied, so these sends do not end with the client.
  for (Worker& worker : workers_) {
    worker.why = worker.line->Send(offer, SteadyNow() + times_.worker, [] { return false; });
    if (!worker.why.ok()) worker.state = WorkerPut::kOut;  // It never receives the offer.
  }
  const absl::Time step_deadline = SteadyNow() + step_timeout_;
  // Counts from the first report or the withdrawal: ranks end a vote within their timeout.
  absl::Time deadline = absl::InfiniteFuture();
  const absl::Duration patience = 2 * collective_timeout_ + times_.worker;
  absl::Status given_up;
  bool is_withdrawn = false;
  while (true) {
    if (given_up.ok()) given_up = GivenUp(step_deadline);
    std::vector<WorkerPut> states;
    for (const Worker& worker : workers_) states.push_back(worker.state);
    const bool has_news = std::any_of(states.begin(), states.end(),
                                      [](WorkerPut state) { return state != WorkerPut::kPending; });
    if (has_news || is_withdrawn) deadline = std::min(deadline, SteadyNow() + patience);
    const PutVerdict verdict = Judge(states, given_up.ok(), SteadyNow() >= deadline);
    if (verdict == PutVerdict::kWithdraw && !is_withdrawn) {
      is_withdrawn = true;
      for (const Worker& worker : workers_)
        (void)worker.line->Send(withdraw, SteadyNow() + times_.worker, [] { return false; });
    }
    if (verdict != PutVerdict::kWait && verdict != PutVerdict::kWithdraw)
      return Conclude(verdict, given_up);
    for (Worker& worker : workers_) {
      if (worker.state == WorkerPut::kPending) Hear(&worker);
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
