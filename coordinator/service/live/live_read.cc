#include "coordinator/service/live/live_read.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "job/job_codec.h"

namespace tessera::coordinator {
namespace {

// An executor revokes a hold that training waits for too long. The next one may last.
constexpr int kMaxTries = 3;
constexpr absl::Duration kBetweenTries = absl::Milliseconds(200);

bool IsWorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

LiveRead::LiveRead(CoordinatorHost* host, LiveHub* hub, const LiveTimes& times, Client client)
    : host_(host),
      hub_(hub),
      times_(times),
      client_(std::move(client)),
      session_(&hub->sessions),
      watch_({"a reading of live state", times.client,
              absl::CancelledError(
                  absl::StrCat("the client read nothing for ", absl::FormatDuration(times.client))),
              [this] { return CheckNotDeleted(); }, [this] { session_.Close(); }, client_.cancel}) {
}

absl::Status LiveRead::Read(const v1::LiveStateQuery& query, const Gate::Caller& caller) {
  job_ = JobId(query.job_id());
  ASSIGN_OR_RETURN(const JobView view, host_->GetJob(job_));
  RETURN_IF_ERROR(Gate::CheckSame(view, caller));
  generation_ = view.generation;
  ASSIGN_OR_RETURN(plan_, PlanLiveRead(view.spec->model, view.spec->config, query));
  wanted_dtype_ = query.dtype();
  is_direct_ = query.direct();
  RETURN_IF_ERROR(ReadableJob().status());
  if (!hub_->readings.TryEnter(job_)) {
    return absl::ResourceExhaustedError(absl::StrCat("job '", job_.value(),
                                                     "': ", hub_->readings.max_of_a_job(),
                                                     " clients read its state already"));
  }
  absl::Status status = watch_.Start();
  if (status.ok()) status = ReadWatched();
  session_.Close();
  EndTurn();
  hub_->readings.Leave(job_);
  const absl::Status reason = watch_.Stop();
  // Why the watch ended the call says more than the error that this led to.
  if (!reason.ok()) status = reason;
  if (!status.ok()) TESSERA_LOG(INFO, "job={} live state: {}", job_.value(), status.ToString());
  return status;
}

absl::Status LiveRead::CheckNotDeleted() const {
  const absl::StatusOr<JobView> view = host_->GetJob(job_);
  if (view.ok() && view->generation == generation_) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("job '", job_.value(), "' was deleted meanwhile"));
}

absl::Status LiveRead::ReadWatched() {
  v1::LiveStateBegin begin;
  RETURN_IF_ERROR(CopyWithTries(&begin));
  if (is_direct_) return ServeDirect(std::move(begin));
  // Everything is copied and nothing is held, so another read may hold.
  EndTurn();
  return Serve(std::move(begin));
}

absl::StatusOr<JobView> LiveRead::ReadableJob() const {
  ASSIGN_OR_RETURN(JobView view, host_->GetJob(job_));
  const std::string what = absl::StrCat("job '", job_.value(), "'");
  if (view.generation != generation_)
    return absl::AbortedError(absl::StrCat(what, " was deleted and created again meanwhile"));
  RETURN_IF_ERROR(CheckNotOver(job_, view.status));
  if (!view.status.bound) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " has no values yet: it has not begun: ", view.status.reason));
  }
  return view;
}

absl::Status LiveRead::CopyWithTries(v1::LiveStateBegin* begin) {
  absl::Status status;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    if (tries > 0) absl::SleepFor(kBetweenTries);
    RETURN_IF_ERROR(
        hub_->turns.Enter(job_, SteadyNow() + times_.copy, [this] { return Cancelled(); }));
    has_turn_ = true;
    status = Copy(begin);
    if (status.ok() || !IsWorthAnotherTry(status)) return status;
    // The next try has a session of its own, so no late answer to this one is taken for its answer.
    session_.Close();
    EndTurn();
    TESSERA_LOG(INFO, "job={} live state, try {}: {}", job_.value(), tries + 1, status.ToString());
  }
  return absl::UnavailableError(absl::StrCat("job '", job_.value(),
                                             "': its state could not be read in ", kMaxTries,
                                             " tries: ", status.message()));
}

absl::Status LiveRead::OpenLines(const JobView& view) {
  const int world_size = static_cast<int>(view.status.placements.size());
  std::vector<bool> is_asked(world_size, false);
  is_asked[0] = true;  // At least one worker has to report the step.
  RETURN_IF_ERROR(
      ForEachLiveSlice(*plan_.layout, plan_.tensors, 0, world_size, [&](const LiveSlice& slice) {
        is_asked[slice.rank] = true;
        return absl::OkStatus();
      }));
  std::map<WorkerId, int> numbers;
  std::vector<WorkerId> workers;
  line_of_rank_.assign(world_size, -1);
  for (int rank = 0; rank < world_size; ++rank) {
    if (!is_asked[rank]) continue;
    const WorkerId& worker = view.status.placements[rank].worker;
    const auto [it, is_new] = numbers.emplace(worker, static_cast<int>(workers.size()));
    line_of_rank_[rank] = it->second;
    if (is_new) workers.push_back(worker);
  }
  return session_.Open(workers, [this](const WorkerId& worker, const std::string& session) {
    return host_->SendCommand(worker, ServeState{job_, generation_, session});
  });
}

absl::Status LiveRead::SendAll(const v1::LiveCommand& command) {
  for (const auto& line : session_.lines()) {
    RETURN_IF_ERROR(
        line->Send(command, SteadyNow() + times_.answer, [this] { return Cancelled(); }));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::LiveEvent> LiveRead::Await(LiveLine* line, v1::LiveEvent::EventCase kind,
                                              absl::Duration timeout) {
  ASSIGN_OR_RETURN(v1::LiveEvent event,
                   line->Next(SteadyNow() + timeout, [this] { return Cancelled(); }));
  if (event.event_case() == kind) return event;
  return absl::UnavailableError(
      absl::StrCat("worker '", line->worker(), "' answered out of order"));
}

void LiveRead::EndTurn() {
  if (has_turn_) hub_->turns.Leave(job_);
  has_turn_ = false;
}

absl::Status LiveRead::Copy(v1::LiveStateBegin* begin) {
  // Looked up for each try, because an epoch since the last one may have moved ranks.
  ASSIGN_OR_RETURN(const JobView view, ReadableJob());
  RETURN_IF_ERROR(OpenLines(view));
  ASSIGN_OR_RETURN(const int64_t step, HoldAll());
  begin->set_step(step);
  if (is_direct_) return ServeAll(begin);
  return CopyAll(begin);
}

absl::StatusOr<int64_t> LiveRead::HoldAll() {
  v1::LiveCommand hold;
  hold.mutable_hold()->mutable_parameters()->Add(plan_.parameters.begin(), plan_.parameters.end());
  hold.mutable_hold()->set_moments(plan_.moments);
  hold.mutable_hold()->mutable_buffers()->Add(plan_.buffers.begin(), plan_.buffers.end());
  hold.mutable_hold()->set_dtype(wanted_dtype_);
  // To all workers before any answer is awaited, so that they hold at the same time.
  RETURN_IF_ERROR(SendAll(hold));
  int64_t step = 0;
  for (const auto& line : session_.lines()) {
    ASSIGN_OR_RETURN(const v1::LiveEvent held,
                     Await(line.get(), v1::LiveEvent::kHeld, times_.answer));
    // A rank that is behind reaches the newest step by itself, because that step is decided.
    step = std::max(step, held.held().step());
  }
  return step;
}

absl::Status LiveRead::CopyAll(v1::LiveStateBegin* begin) {
  v1::LiveCommand copy;
  copy.mutable_copy()->set_step(begin->step());
  RETURN_IF_ERROR(SendAll(copy));
  for (const auto& line : session_.lines()) {
    ASSIGN_OR_RETURN(const v1::LiveEvent copied,
                     Await(line.get(), v1::LiveEvent::kCopied, times_.copy));
    RETURN_IF_ERROR(NoteProgress(line->worker(), copied.copied().trained_step(),
                                 copied.copied().update_counts(), copied.copied().groups(), begin));
  }
  return absl::OkStatus();
}

absl::Status LiveRead::NoteProgress(
    const std::string& worker, int64_t trained_step,
    const google::protobuf::RepeatedField<int64_t>& update_counts,
    const google::protobuf::RepeatedPtrField<v1::ParamGroup>& groups, v1::LiveStateBegin* begin) {
  // InfoOf looks the counts up by parameter, so there must be as many.
  if (update_counts.size() != static_cast<int>(plan_.parameters.size()))
    return absl::UnavailableError(absl::StrCat("worker '", worker, "' copied other parameters"));
  // Each worker says the same, because all of them copied at the step of the hold.
  begin->set_trained_step(trained_step);
  if (plan_.moments) *begin->mutable_groups() = groups;
  update_counts_.assign(update_counts.begin(), update_counts.end());
  return absl::OkStatus();
}

absl::Status LiveRead::TellBegin(v1::LiveStateBegin begin) {
  begin.set_generation(generation_.value());
  begin.set_num_tensors(static_cast<int64_t>(plan_.tensors.size()));
  begin.set_size_bytes(plan_.TotalBytes());
  v1::LiveStateReply reply;
  *reply.mutable_begin() = std::move(begin);
  return Write(reply);
}

v1::LiveTensorInfo LiveRead::InfoOf(size_t number) const {
  v1::LiveTensorInfo info = plan_.InfoOf(number);
  const LiveTensor& tensor = plan_.tensors[number];
  if (tensor.array == LiveArray::kBuffer) return info;
  const auto parameter =
      std::lower_bound(plan_.parameters.begin(), plan_.parameters.end(), tensor.job_parameter);
  info.set_update_count(update_counts_[parameter - plan_.parameters.begin()]);
  return info;
}

absl::Status LiveRead::Serve(v1::LiveStateBegin begin) {
  RETURN_IF_ERROR(TellBegin(std::move(begin)));
  size_t next = 0;
  const auto announce_before = [&](size_t end) -> absl::Status {
    v1::LiveStateReply reply;
    for (; next < end; ++next) {
      *reply.mutable_tensor() = InfoOf(next);
      RETURN_IF_ERROR(Write(reply));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachLiveSlice(*plan_.layout, plan_.tensors, 0,
                                   static_cast<int>(line_of_rank_.size()),
                                   [&](const LiveSlice& slice) -> absl::Status {
                                     // With those before it that have no elements, and so no slice.
                                     RETURN_IF_ERROR(announce_before(slice.tensor + 1));
                                     return ServeSlice(slice);
                                   }));
  return announce_before(plan_.tensors.size());
}

absl::StatusOr<int64_t> CheckPiece(const v1::LivePiece& piece, int64_t begin_elements,
                                   int64_t max_elements, int64_t element_bytes,
                                   const std::string& worker) {
  const int64_t size_bytes = piece.data().size();
  if (piece.offset_elements() != begin_elements || size_bytes == 0 ||
      size_bytes % element_bytes != 0 || size_bytes / element_bytes > max_elements) {
    return absl::UnavailableError(
        absl::StrCat("worker '", worker, "' sent data that was not requested"));
  }
  return size_bytes / element_bytes;
}

absl::Status LiveRead::ServeSlice(const LiveSlice& slice) {
  const LiveSession::Lines lines = session_.lines();
  if (lines.empty()) return absl::CancelledError("the reading was ended");
  LiveLine* const line = lines[line_of_rank_[slice.rank]].get();
  const int64_t element_bytes = plan_.ElementBytesOf(slice.tensor);
  for (int64_t done = 0; done < slice.numel;) {
    ASSIGN_OR_RETURN(v1::LiveEvent event, Await(line, v1::LiveEvent::kPiece, times_.copy));
    ASSIGN_OR_RETURN(const int64_t numel,
                     CheckPiece(event.piece(), slice.begin_elements + done, slice.numel - done,
                                element_bytes, line->worker()));
    done += numel;
    v1::LiveStateReply reply;
    *reply.mutable_piece() = std::move(*event.mutable_piece());
    RETURN_IF_ERROR(Write(reply));
  }
  return absl::OkStatus();
}

absl::Status LiveRead::Write(const v1::LiveStateReply& reply) {
  ASSIGN_OR_RETURN(const bool written, watch_.Wait([&] { return client_.write(reply); }));
  return written ? absl::OkStatus() : absl::CancelledError("the client is gone");
}

}  // namespace tessera::coordinator
