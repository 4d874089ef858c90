#include "coordinator/service/live/live_read.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "job/job_codec.h"

namespace tessera::coordinator {
namespace {

constexpr int kMaxTries = 3;
constexpr absl::Duration kBetweenTries = absl::Milliseconds(200);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);

bool IsWorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

absl::Status LiveRead::Read(const v1::LiveStateQuery& query, const Gate::Caller& caller) {
  job_ = JobId(query.job_id());
  ASSIGN_OR_RETURN(const JobView view, host_->GetJob(job_));
  RETURN_IF_ERROR(Gate::CheckSame(view, caller));
  generation_ = view.generation;
  ASSIGN_OR_RETURN(plan_, PlanLiveRead(view.spec->model, view.spec->config, query));
  wanted_dtype_ = query.dtype();
  wanted_form_ = query.form();
  is_direct_ = query.direct();
  RETURN_IF_ERROR(ReadableJob().status());
  RETURN_IF_ERROR(hub_->Enter(job_));
  absl::StatusOr<std::thread> watch = StartThread("a reading of live state", [this] { Watch(); });
  absl::Status status = watch.ok() ? ReadWatched() : watch.status();
  CloseLines();
  EndTurn();
  hub_->Leave(job_);
  phase_ = Transition(phase_, LiveStep::kEnd);
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
    if (!reason_.ok()) status = reason_;
  }
  if (watch.ok()) watch->join();
  if (!status.ok()) TESSERA_LOG(INFO, "job={} live state: {}", job_.value(), status.ToString());
  return status;
}

absl::Status LiveRead::ReadWatched() {
  v1::LiveStateBegin begin;
  RETURN_IF_ERROR(CopyWithTries(&begin));
  RETURN_IF_ERROR(CheckOneCountAUnit());
  if (is_direct_) return ServeDirect(std::move(begin));
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
        hub_->TakeTurn(job_, SteadyNow() + times_.copy, [this] { return Cancelled(); }));
    has_turn_ = true;
    status = Copy(begin);
    if (status.ok() || !IsWorthAnotherTry(status)) return status;
    CloseLines();
    EndTurn();
    phase_ = Transition(phase_, LiveStep::kTryAgain);
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
  session_ = LiveHub::NewSession();
  std::map<WorkerId, int> workers;
  std::vector<std::shared_ptr<LiveLine>> lines;
  line_of_rank_.assign(world_size, -1);
  for (int rank = 0; rank < world_size; ++rank) {
    if (!is_asked[rank]) continue;
    const WorkerId& worker = view.status.placements[rank].worker;
    const auto [it, is_new] = workers.emplace(worker, static_cast<int>(lines.size()));
    line_of_rank_[rank] = it->second;
    if (is_new) lines.push_back(std::make_shared<LiveLine>(worker.value()));
  }
  {
    absl::MutexLock lock(&mu_);
    lines_ = lines;
  }
  for (const auto& line : lines) {
    hub_->Expect(session_, line);
    if (!host_->SendCommand(WorkerId(line->worker()), ServeState{job_, generation_, session_})) {
      return absl::UnavailableError(absl::StrCat("worker '", line->worker(), "' is not connected"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::LiveEvent> LiveRead::Await(LiveLine* line, v1::LiveEvent::EventCase kind,
                                              absl::Duration timeout) {
  ASSIGN_OR_RETURN(v1::LiveEvent event,
                   line->Next(SteadyNow() + timeout, [this] { return Cancelled(); }));
  if (event.event_case() == kind) return event;
  return OutOfOrder(*line);
}

absl::Status LiveRead::OutOfOrder(const LiveLine& line) {
  return absl::UnavailableError(absl::StrCat("worker '", line.worker(), "' answered out of order"));
}

void LiveRead::EndTurn() {
  if (has_turn_) hub_->EndTurn(job_);
  has_turn_ = false;
}

std::vector<std::shared_ptr<LiveLine>> LiveRead::Lines() {
  absl::MutexLock lock(&mu_);
  return lines_;
}

absl::Status LiveRead::Copy(v1::LiveStateBegin* begin) {
  ASSIGN_OR_RETURN(const JobView view, ReadableJob());
  RETURN_IF_ERROR(OpenLines(view));
  ASSIGN_OR_RETURN(const int64_t step, HoldAll());
  phase_ = Transition(phase_, LiveStep::kAllHeld);
  begin->set_step(step);
  if (is_direct_) return ServeAll(begin);
  RETURN_IF_ERROR(CopyAll(begin));
  phase_ = Transition(phase_, LiveStep::kAllCopied);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> LiveRead::HoldAll() {
  v1::LiveCommand hold;
  hold.mutable_hold()->mutable_parameters()->Add(plan_.parameters.begin(), plan_.parameters.end());
  hold.mutable_hold()->set_moments(plan_.moments);
  hold.mutable_hold()->mutable_buffers()->Add(plan_.buffers.begin(), plan_.buffers.end());
  hold.mutable_hold()->set_dtype(wanted_dtype_);
  hold.mutable_hold()->set_form(wanted_form_);
  hold.mutable_hold()->set_form_rank(plan_.part.rank);
  for (const auto& line : Lines()) line->Send(hold);
  int64_t step = 0;
  for (const auto& line : Lines()) {
    ASSIGN_OR_RETURN(const v1::LiveEvent held,
                     Await(line.get(), v1::LiveEvent::kHeld, times_.answer));
    if (held.held().form() != wanted_form_) {
      return absl::UnimplementedError(
          absl::StrCat("worker '", line->worker(), "' is too old to give a rank's part of state"));
    }
    step = std::max(step, held.held().step());
  }
  return step;
}

absl::Status LiveRead::CopyAll(v1::LiveStateBegin* begin) {
  v1::LiveCommand copy;
  copy.mutable_copy()->set_step(begin->step());
  for (const auto& line : Lines()) line->Send(copy);
  for (const auto& line : Lines()) {
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
  if (update_counts.size() != static_cast<int>(plan_.parameters.size()))
    return absl::UnavailableError(absl::StrCat("worker '", worker, "' copied other parameters"));
  begin->set_trained_step(trained_step);
  if (plan_.moments) *begin->mutable_groups() = groups;
  update_counts_.assign(update_counts.begin(), update_counts.end());
  return absl::OkStatus();
}

int64_t LiveRead::UpdateCountOf(const LiveTensor& tensor) const {
  const auto parameter =
      std::lower_bound(plan_.parameters.begin(), plan_.parameters.end(), tensor.job_parameter);
  return update_counts_[parameter - plan_.parameters.begin()];
}

absl::Status LiveRead::CheckOneCountAUnit() const {
  if (plan_.part.form != LiveForm::kLocal || !plan_.moments) return absl::OkStatus();
  const LiveTensor* first = nullptr;
  for (const LiveTensor& tensor : plan_.tensors) {
    if (tensor.array != LiveArray::kParameter) continue;
    const TensorSpec& spec = ParameterOf(*plan_.layout, tensor).spec;
    if (!spec.requires_grad) continue;
    if (first == nullptr || first->unit != tensor.unit) first = &tensor;
    if (UpdateCountOf(tensor) == UpdateCountOf(*first)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer state: a flat part has one step, but '",
                     ParameterOf(*plan_.layout, *first).spec.name, "' has ", UpdateCountOf(*first),
                     " and '", spec.name, "' ", UpdateCountOf(tensor)));
  }
  return absl::OkStatus();
}

void LiveRead::CloseLines() {
  absl::MutexLock lock(&mu_);
  for (const auto& line : lines_) {
    hub_->Forget(session_, line->worker());
    line->Close();
  }
  lines_.clear();
}

absl::Status LiveRead::TellBegin(v1::LiveStateBegin begin) {
  begin.set_generation(generation_.value());
  begin.set_num_tensors(plan_.num_entries());
  begin.set_size_bytes(plan_.TotalBytes());
  v1::LiveStateReply reply;
  *reply.mutable_begin() = std::move(begin);
  return Write(reply);
}

v1::LiveTensorInfo LiveRead::InfoOf(size_t entry) {
  v1::LiveTensorInfo info = plan_.InfoOf(entry);
  if (plan_.FirstOf(entry).array == LiveArray::kBuffer) return info;
  if (plan_.part.form != LiveForm::kLocal) {
    info.set_update_count(UpdateCountOf(plan_.FirstOf(entry)));
    return info;
  }
  if (plan_.FirstOf(entry).array == LiveArray::kParameter) return info;
  for (size_t t = plan_.entries[entry]; t < plan_.entries[entry + 1]; ++t) {
    const LiveTensor& tensor = plan_.tensors[t];
    if (!ParameterOf(*plan_.layout, tensor).spec.requires_grad) continue;
    info.set_update_count(UpdateCountOf(tensor));  // CheckOneCountAUnit: all have the same.
  }
  return info;
}

absl::Status LiveRead::Serve(v1::LiveStateBegin begin) {
  RETURN_IF_ERROR(TellBegin(std::move(begin)));
  size_t next_entry = 0;
  const auto announce_up_to = [&](size_t entry) -> absl::Status {
    v1::LiveStateReply reply;
    for (; next_entry <= entry; ++next_entry) {
      *reply.mutable_tensor() = InfoOf(next_entry);
      RETURN_IF_ERROR(Write(reply));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachLiveSlice(*plan_.layout, plan_.tensors, 0,
                                   static_cast<int>(line_of_rank_.size()),
                                   [&](const LiveSlice& slice) -> absl::Status {
                                     RETURN_IF_ERROR(announce_up_to(plan_.EntryOf(slice.tensor)));
                                     return ServeSlice(slice);
                                   }));
  return announce_up_to(plan_.num_entries() - 1);
}

absl::Status LiveRead::ServeSlice(const LiveSlice& slice) {
  std::shared_ptr<LiveLine> line;
  {
    absl::MutexLock lock(&mu_);
    if (lines_.empty()) return absl::CancelledError("the reading was ended");
    line = lines_[line_of_rank_[slice.rank]];
  }
  const int64_t element_bytes = plan_.ElementBytesOf(slice.tensor);
  for (int64_t done = 0; done < slice.numel;) {
    ASSIGN_OR_RETURN(v1::LiveEvent event, Await(line.get(), v1::LiveEvent::kPiece, times_.copy));
    const int64_t size_bytes = event.piece().data().size();
    if (event.piece().offset_elements() != slice.sent_begin_elements + done || size_bytes == 0 ||
        size_bytes % element_bytes != 0 || size_bytes / element_bytes > slice.numel - done) {
      return absl::UnavailableError(
          absl::StrCat("worker '", line->worker(), "' sent data that was not requested"));
    }
    done += size_bytes / element_bytes;
    v1::LiveStateReply reply;
    *reply.mutable_piece() = std::move(*event.mutable_piece());
    RETURN_IF_ERROR(Write(reply));
  }
  return absl::OkStatus();
}

absl::Status LiveRead::Write(const v1::LiveStateReply& reply) {
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

void LiveRead::Watch() {
  absl::MutexLock lock(&mu_);
  while (!AwaitWithTimeout(&mu_, absl::Condition(&done_), kWatchInterval)) {
    const absl::StatusOr<JobView> view = host_->GetJob(job_);
    if (!view.ok() || view->generation != generation_)
      End(absl::AbortedError(absl::StrCat("job '", job_.value(), "' was deleted meanwhile")));
    if (SteadyNow() - writing_since_ <= times_.client) continue;
    End(absl::CancelledError(
        absl::StrCat("the client read nothing for ", absl::FormatDuration(times_.client))));
    client_.cancel();
  }
}

void LiveRead::End(const absl::Status& reason) {
  if (reason_.ok()) reason_ = reason;
  ended_.store(true);
  for (const auto& line : lines_) line->Close();
}

}  // namespace tessera::coordinator
