#include "coordinator/service/hand_over/hand_over_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "job/job_layout.h"

namespace tessera::coordinator {

HandOverReader::HandOverReader(CoordinatorHost* host, LiveSessions* hub, JobPlaces* places,
                               const LiveTimes& times, Client client)
    : host_(host),
      places_(places),
      times_(times),
      client_(std::move(client)),
      session_(hub),
      watch_({"a reading of a hand-over", times.client,
              absl::CancelledError(
                  absl::StrCat("the client read nothing for ", absl::FormatDuration(times.client))),
              [this] { return StandingJob().status(); }, [this] { session_.Close(); },
              client_.cancel}) {}

absl::StatusOr<JobView> HandOverReader::StandingJob() const {
  ASSIGN_OR_RETURN(JobView view, host_->GetJob(job_));
  const std::string what = absl::StrCat("job '", job_.value(), "'");
  if (view.generation != generation_ || !view.hand_over.has_value() ||
      view.hand_over->number != number_ || !Stands(view.hand_over->phase) ||
      IsOver(view.status.state)) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": this hand-over is no longer pending"));
  }
  return view;
}

absl::Status HandOverReader::Read(const v1::ReadHandOverRequest& request) {
  job_ = JobId(request.job_id());
  generation_ = Generation(request.generation());
  number_ = request.number();
  ASSIGN_OR_RETURN(const JobView view, StandingJob());
  ASSIGN_OR_RETURN(const ModelLayout layout, LayOut(view.spec->model, view.spec->config));
  ASSIGN_OR_RETURN(plan_, PlanHandOverRead(layout, view.spec->config.optimizer, request));
  // Without a deadline: all ranks of a taker read at the same time, and may be more than places.
  RETURN_IF_ERROR(places_->Enter(job_, absl::InfiniteFuture(), client_.cancelled));
  absl::Status status = watch_.Start();
  if (status.ok()) status = ReadWatched(view);
  session_.Close();
  places_->Leave(job_);
  const absl::Status reason = watch_.Stop();
  // Why the watch ended the call says more than the error that this led to.
  if (!reason.ok()) status = reason;
  if (!status.ok()) TESSERA_LOG(INFO, "job={} hand-over: {}", job_.value(), status.ToString());
  return status;
}

absl::Status HandOverReader::OpenLines(const JobView& view) {
  std::map<WorkerId, int> numbers;
  std::vector<WorkerId> workers;
  std::vector<v1::LiveCommand> commands;
  const auto line_of = [&](int rank) {
    const WorkerId& worker = view.status.placements[rank].worker;
    const auto [it, is_new] = numbers.emplace(worker, static_cast<int>(workers.size()));
    if (is_new) {
      workers.push_back(worker);
      commands.emplace_back().mutable_read()->set_step(view.hand_over->step.value());
    }
    return line_of_rank_[rank] = it->second;
  };
  line_of(0);  // At least one worker has to report the step.
  for (const HandOverPart& part : plan_)
    *commands[line_of(part.range.rank())].mutable_read()->add_ranges() = part.range;
  RETURN_IF_ERROR(
      session_.Open(workers, [this](const WorkerId& worker, const std::string& session) {
        return host_->SendCommand(worker, ServeState{job_, generation_, session});
      }));
  const LiveSession::Lines lines = session_.lines();
  for (size_t i = 0; i < lines.size(); ++i) {
    RETURN_IF_ERROR(lines[i]->Send(std::move(commands[i]), SteadyNow() + times_.answer,
                                   [this] { return Cancelled(); }));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::LiveEvent> HandOverReader::Await(LiveLine* line, v1::LiveEvent::EventCase kind) {
  absl::StatusOr<v1::LiveEvent> event =
      line->Next(SteadyNow() + times_.answer, [this] { return Cancelled(); });
  // The worker is late, not the client, which may try again.
  if (absl::IsDeadlineExceeded(event.status()))
    return absl::UnavailableError(event.status().message());
  if (!event.ok() || event->event_case() == kind) return event;
  return absl::UnavailableError(
      absl::StrCat("worker '", line->worker(), "' answered out of order"));
}

absl::Status HandOverReader::ReadWatched(const JobView& view) {
  if (view.status.state != JobState::kRunning) {
    return absl::UnavailableError(
        absl::StrCat("job '", job_.value(), "' is not ready: ", view.status.reason));
  }
  RETURN_IF_ERROR(OpenLines(view));
  v1::HandOverReply reply;
  for (const auto& line : session_.lines()) {
    ASSIGN_OR_RETURN(const v1::LiveEvent event, Await(line.get(), v1::LiveEvent::kCopied));
    // The job is frozen, so all workers report the same.
    reply.mutable_begin()->set_trained_step(event.copied().trained_step());
    *reply.mutable_begin()->mutable_update_counts() = event.copied().update_counts();
  }
  RETURN_IF_ERROR(Write(reply));
  for (const HandOverPart& part : plan_) RETURN_IF_ERROR(ServePart(part));
  // What was read counts only if the hand-over is still pending.
  return StandingJob().status();
}

absl::Status HandOverReader::ServePart(const HandOverPart& part) {
  const LiveSession::Lines lines = session_.lines();
  if (lines.empty()) return absl::CancelledError("the reading was ended");
  LiveLine* const line = lines[line_of_rank_.at(part.range.rank())].get();
  for (int64_t done = 0; done < part.range.numel();) {
    ASSIGN_OR_RETURN(v1::LiveEvent event, Await(line, v1::LiveEvent::kPiece));
    ASSIGN_OR_RETURN(const int64_t numel,
                     CheckPiece(event.piece(), part.range.begin_elements() + done,
                                part.range.numel() - done, part.element_bytes, line->worker()));
    done += numel;
    v1::HandOverReply reply;
    *reply.mutable_piece() = std::move(*event.mutable_piece());
    RETURN_IF_ERROR(Write(reply));
  }
  return absl::OkStatus();
}

absl::Status HandOverReader::Write(const v1::HandOverReply& reply) {
  ASSIGN_OR_RETURN(const bool written, watch_.Wait([&] { return client_.write(reply); }));
  return written ? absl::OkStatus() : absl::CancelledError("the client is gone");
}

}  // namespace tessera::coordinator
