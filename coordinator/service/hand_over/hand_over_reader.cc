#include "coordinator/service/hand_over/hand_over_reader.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "job/job_layout.h"

namespace tessera::coordinator {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

}  // namespace

absl::Status ReadingPlaces::Enter(const JobId& job, absl::FunctionRef<bool()> cancelled) {
  absl::MutexLock lock(&mu_);
  const auto is_free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const auto it = readings_.find(job);
    return it == readings_.end() || it->second < kMaxReadingsOfAJob;
  };
  while (!AwaitWithTimeout(&mu_, absl::Condition(&is_free), kPoll)) {
    if (cancelled()) return absl::CancelledError("the reader is gone");
  }
  ++readings_[job];
  return absl::OkStatus();
}

void ReadingPlaces::Leave(const JobId& job) {
  absl::MutexLock lock(&mu_);
  const auto it = readings_.find(job);
  if (--it->second == 0) readings_.erase(it);
}

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
  RETURN_IF_ERROR(places_->Enter(job_, client_.cancelled));
  absl::StatusOr<std::thread> watch = StartThread("a reading of a hand-over", [this] { Watch(); });
  absl::Status status = watch.ok() ? ReadWatched(view) : watch.status();
  CloseLines();
  places_->Leave(job_);
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
    if (!reason_.ok()) status = reason_;
  }
  if (watch.ok()) watch->join();
  if (!status.ok()) TESSERA_LOG(INFO, "job={} hand-over: {}", job_.value(), status.ToString());
  return status;
}

absl::Status HandOverReader::OpenLines(const JobView& view) {
  session_ = LiveHub::NewSession();
  std::map<WorkerId, int> workers;
  std::vector<std::shared_ptr<LiveLine>> lines;
  std::vector<v1::LiveCommand> commands;
  const auto line_of = [&](int rank) {
    const WorkerId& worker = view.status.placements[rank].worker;
    const auto [it, is_new] = workers.emplace(worker, static_cast<int>(lines.size()));
    if (is_new) {
      lines.push_back(std::make_shared<LiveLine>(worker.value()));
      commands.emplace_back().mutable_read()->set_step(view.hand_over->step.value());
    }
    return line_of_rank_[rank] = it->second;
  };
  line_of(0);  // At least one worker has to report the step.
  for (const HandOverPart& part : plan_)
    *commands[line_of(part.range.rank())].mutable_read()->add_ranges() = part.range;
  {
    absl::MutexLock lock(&mu_);
    lines_ = lines;
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    hub_->Expect(session_, lines[i]);
    lines[i]->Send(std::move(commands[i]));
    if (!host_->SendCommand(WorkerId(lines[i]->worker()),
                            ServeState{job_, generation_, session_})) {
      return absl::UnavailableError(
          absl::StrCat("worker '", lines[i]->worker(), "' is not connected"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::LiveEvent> HandOverReader::Await(LiveLine* line, v1::LiveEvent::EventCase kind) {
  absl::StatusOr<v1::LiveEvent> event =
      line->Next(SteadyNow() + times_.answer, [this] { return Cancelled(); });
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
  std::vector<std::shared_ptr<LiveLine>> lines;
  {
    absl::MutexLock lock(&mu_);
    lines = lines_;
  }
  v1::HandOverReply reply;
  for (const auto& line : lines) {
    ASSIGN_OR_RETURN(const v1::LiveEvent event, Await(line.get(), v1::LiveEvent::kCopied));
    reply.mutable_begin()->set_trained_step(event.copied().trained_step());
    *reply.mutable_begin()->mutable_update_counts() = event.copied().update_counts();
  }
  RETURN_IF_ERROR(Write(reply));
  for (const HandOverPart& part : plan_) RETURN_IF_ERROR(ServePart(part));
  return StandingJob().status();
}

absl::Status HandOverReader::ServePart(const HandOverPart& part) {
  std::shared_ptr<LiveLine> line;
  {
    absl::MutexLock lock(&mu_);
    if (lines_.empty()) return absl::CancelledError("the reading was ended");
    line = lines_[line_of_rank_.at(part.range.rank())];
  }
  for (int64_t done = 0; done < part.range.numel();) {
    ASSIGN_OR_RETURN(v1::LiveEvent event, Await(line.get(), v1::LiveEvent::kPiece));
    const int64_t size_bytes = event.piece().data().size();
    if (event.piece().offset_elements() != part.range.begin_elements() + done || size_bytes == 0 ||
        size_bytes % part.element_bytes != 0 ||
        size_bytes / part.element_bytes > part.range.numel() - done) {
      return absl::UnavailableError(
          absl::StrCat("worker '", line->worker(), "' sent data that was not requested"));
    }
    done += size_bytes / part.element_bytes;
    v1::HandOverReply reply;
    *reply.mutable_piece() = std::move(*event.mutable_piece());
    RETURN_IF_ERROR(Write(reply));
  }
  return absl::OkStatus();
}

absl::Status HandOverReader::Write(const v1::HandOverReply& reply) {
  {
    absl::MutexLock lock(&mu_);
    if (!reason_.ok()) return reason_;
    writing_since_ = SteadyNow();
  }
  const bool written = client_.write(reply);
  absl::MutexLock lock(&mu_);
  writing_since_ = absl::InfiniteFuture();
  return written ? absl::OkStatus() : absl::CancelledError("the client is gone");
}

void HandOverReader::CloseLines() {
  absl::MutexLock lock(&mu_);
  for (const auto& line : lines_) {
    hub_->Forget(session_, line->worker());
    line->Close();
  }
  lines_.clear();
}

void HandOverReader::Watch() {
  absl::MutexLock lock(&mu_);
  while (!AwaitWithTimeout(&mu_, absl::Condition(&done_), kPoll)) {
    const absl::Status stands = StandingJob().status();
    if (!stands.ok()) End(stands);
    if (SteadyNow() - writing_since_ <= times_.client) continue;
    End(absl::CancelledError(
        absl::StrCat("the client read nothing for ", absl::FormatDuration(times_.client))));
    client_.cancel();
  }
}

void HandOverReader::End(const absl::Status& reason) {
  if (reason_.ok()) reason_ = reason;
  ended_.store(true);
  for (const auto& line : lines_) line->Close();
}

}  // namespace tessera::coordinator
