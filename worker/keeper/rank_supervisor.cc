// The supervision of a rank's executors: launches, events, ends.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/retry.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/model_file.h"
#include "worker/keeper/executor_event.h"
#include "worker/keeper/hosted_job.h"
#include "worker/keeper/standstill.h"
#include "worker/memory/control_page.h"
#include "worker/memory/fd_passing.h"

namespace tessera {
namespace {

// Between two looks at an executor that says nothing.
constexpr absl::Duration kLook = absl::Milliseconds(500);

// After so many executors in a row that ended before they were ready, the coordinator is told.
constexpr int kFailedStartsTold = 3;

// Before the launch that follows `failed_starts` in a row.
absl::Duration RelaunchDelay(int failed_starts) {
  RetryOptions options;
  options.initial = absl::Milliseconds(200);
  options.max = absl::Seconds(10);
  return RetryDelay(options, failed_starts - 1, /*uniform=*/0.5);
}

}  // namespace

void HostedJob::Supervise(Rank rank) {
  int failed_starts = 0;  // In a row.
  while (true) {
    const absl::StatusOr<int> socket = LaunchExecutor(rank);
    ExecutorEnd end;
    if (socket.ok()) {
      ReadEvents(rank, *socket);
      end = ReapExecutor(rank);
    } else {
      end.how = socket.status().ToString();
    }
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    const HostedRank& slot = SlotOf(rank);
    // Where a trainer hosts or is about to, the end says nothing of the next start.
    const bool is_failed_start = !end.was_ready && !end.was_hosted && slot.offer == nullptr;
    failed_starts = is_failed_start ? failed_starts + 1 : 0;
    if (end.left_its_epoch) {
      TESSERA_LOG(INFO, "job {} rank {}: the executor left with its trainer", job_id_,
                  rank.value());
      continue;
    }
    if (slot.vacant && phase_ == EpochPhase::kRunning) {
      // The epoch continues without one, and this one was in none.
      TESSERA_LOG(WARNING, "job {} rank {}: executor {}", job_id_, rank.value(), end.how);
    } else {
      OnExecutorEndLocked(rank, end.how, failed_starts);
    }
    if (failed_starts == 0) continue;
    const auto go_on = [this, &slot]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return closing_ || slot.offer != nullptr;
    };
    AwaitWithTimeout(&mu_, absl::Condition(&go_on), RelaunchDelay(failed_starts));
    if (closing_) return;
  }
}

absl::StatusOr<int> HostedJob::LaunchExecutor(Rank rank) {
  v1::Job job;
  std::unique_ptr<HostOffer> offer;
  do {
    if (needs_hosts()) AwaitOffer(rank);
    absl::MutexLock lock(&mu_);
    if (closing_) return absl::CancelledError("the job ends");
    job = job_;
    offer = std::move(SlotOf(rank).offer);
  } while (needs_hosts() && offer == nullptr);  // The offering trainer may be gone again.
  UniqueFd socket;
  std::unique_ptr<RunningExecutor> executor;
  if (offer != nullptr) {
    socket = std::move(offer->socket);
    executor = NewTrainersExecutor(offer->pid);
  } else {
    ASSIGN_OR_RETURN(auto sockets, CreatePacketSocketPair());
    socket = std::move(sockets.first);
    ASSIGN_OR_RETURN(executor, launcher_->Launch(std::move(sockets.second),
                                                 absl::StrCat(job_id_, "/", rank.value())));
  }
  if (vault_ != nullptr)
    vault_->NoteExecutor(vault_owner_, rank, offer != nullptr ? 0 : executor->pid());
  const absl::Status sent = regions_.SendSetup(socket.get(), job, rank, data_host_);
  if (!sent.ok()) {
    socket.Reset();  // Ends the executor, also one that is a thread.
    executor->Kill();
    // How it ended says more than that it did not listen.
    return Annotate(sent, absl::StrCat(executor->Wait(), "; executor setup"));
  }
  absl::MutexLock lock(&mu_);
  HostedRank& slot = SlotOf(rank);
  slot.socket = std::move(socket);
  slot.executor = std::move(executor);
  slot.host = offer != nullptr ? offer->attachment : Incarnation();
  slot.ending = slot.left = false;
  slot.launched_at = SteadyNow();
  const bool is_wanted = offer != nullptr ? HostIsAttachedLocked(slot, slot.host)
                                          : slot.offer == nullptr;  // Meanwhile a trainer came.
  if (closing_ || !is_wanted) EndExecutorLocked(slot);
  return slot.socket.get();
}

void HostedJob::ReadEvents(Rank rank, int socket) {
  {
    absl::ReleasableMutexLock lock(&mu_);
    if (SlotOf(rank).host != Incarnation()) {
      lock.Release();
      return ReadHostedEvents(rank, socket);
    }
  }
  while (true) {
    AwaitLaunched(rank, socket);
    const absl::StatusOr<Packet> packet = ReceivePacket(socket);
    if (!packet.ok()) return;
    const absl::StatusOr<v1::ExecutorEvent> event = ParseExecutorEvent(packet->bytes);
    if (!event.ok()) {  // No executor of ours: it makes room for one.
      TESSERA_LOG(ERROR, "job {} rank {}: its executor: {}", job_id_, rank.value(),
                  event.status().ToString());
      return;
    }
    OnEvent(rank, *event);
  }
}

void HostedJob::AwaitLaunched(Rank rank, int socket) {
  const absl::Duration patience = std::min(kStandstill, answer_timeout_);
  const int look_ms = static_cast<int>(absl::ToInt64Milliseconds(std::min(kLook, patience / 2)));
  Standstill standstill(patience, regions_.config().collective_timeout);
  const ControlPage& page = *regions_.control(rank);
  while (true) {
    pollfd readable = {socket, POLLIN, 0};
    const int ready = poll(&readable, 1, std::max(look_ms, 1));
    if (ready > 0 || (ready < 0 && errno != EINTR)) return;
    absl::MutexLock lock(&mu_);
    HostedRank& slot = SlotOf(rank);
    if (slot.executor == nullptr || slot.ending) continue;
    Standstill::Look look;
    look.is_stopped = slot.executor->is_stopped();
    if (phase_ == EpochPhase::kPreparing && slot.ready && !slot.quiet)
      look.asked = std::max(preparing_since_, slot.ready_at);
    if (phase_ == EpochPhase::kRunning && page.epoch.load() == epoch_.value()) {
      look.kind = page.progress_kind.load();
      look.consumed = page.consumed.load();
    }
    const std::optional<Standstill::Verdict> verdict = standstill.Judge(look, SteadyNow());
    if (!verdict.has_value()) continue;
    TESSERA_LOG(WARNING, "job {} rank {}: its executor, {}, {}{}", job_id_, rank.value(),
                slot.executor->Describe(), verdict->why, verdict->end ? ": it is killed" : "");
    if (!verdict->end) continue;
    slot.why_ended = verdict->why;
    return EndExecutorLocked(slot);
  }
}

std::string HostedJob::AwaitEnd(Rank rank, RunningExecutor* executor) {
  const absl::Duration patience = std::min(kStandstill, answer_timeout_);
  while (!executor->EndsWithin(patience)) {
    const std::string reason = absl::StrCat("the executor of rank ", rank.value(),
                                            " was killed and does not end: ", executor->Describe());
    absl::MutexLock lock(&mu_);
    TESSERA_LOG(ERROR, "job {}: {}", job_id_, reason);
    if (phase_ != EpochPhase::kPreparing || SteadyNow() - preparing_since_ >= patience)
      EndEpochOfRankLocked(rank, reason, EpochEvent::kGiveUp);
  }
  return executor->Wait();
}

HostedJob::ExecutorEnd HostedJob::ReapExecutor(Rank rank) {
  std::unique_ptr<RunningExecutor> executor;
  ExecutorEnd end;
  std::string saving_path, why_ended;
  {
    absl::MutexLock lock(&mu_);
    HostedRank& slot = SlotOf(rank);
    saving_path.swap(slot.saving_path);
    why_ended.swap(slot.why_ended);
    executor = std::move(slot.executor);
    end.was_ready = slot.ready;
    end.was_hosted = slot.host != Incarnation();
    // Where its trainer is still there, it waits for what nobody does.
    end.left_its_epoch =
        slot.left && phase_ == EpochPhase::kRunning && !HostIsAttachedLocked(slot, slot.host);
    if (end.left_its_epoch) slot.vacant = true;
    slot.host = Incarnation();
    slot.ready = false;
    slot.quiet = false;
    slot.pending_order.Clear();
    slot.socket.Reset();
  }
  // The socket is closed, so either it is dead or it is beyond use.
  executor->Kill();
  end.how = AwaitEnd(rank, executor.get());
  if (!why_ended.empty()) absl::StrAppend(&end.how, " as it ", why_ended);
  OnPutHolderEnded(rank);
  if (!saving_path.empty()) {
    TESSERA_LOG(INFO, "job {} rank {}: removes the unfinished {}", job_id_, rank.value(),
                PrintableUtf8(saving_path));
    ModelFile::Discard(saving_path);
    DiscardFolder(saving_path);
  }
  return end;
}

void HostedJob::OnExecutorEndLocked(Rank rank, const std::string& how, int failed_starts) {
  TESSERA_LOG(WARNING, "job {} rank {}: executor {}", job_id_, rank.value(), how);
  EndOpenSaveLocked(rank, how);
  std::string reason = absl::StrCat("the executor of rank ", rank.value(), " ended: ", how);
  if (failed_starts >= kFailedStartsTold) {
    reason = absl::StrCat("the executor of rank ", rank.value(), " (", launcher_->name(),
                          ") ended ", failed_starts, " times before it was ready: ", how);
  }
  EndEpochOfRankLocked(
      rank, reason,
      failed_starts >= kFailedStartsTold ? EpochEvent::kGiveUp : EpochEvent::kFailure);
}

void HostedJob::EndEpochOfRankLocked(Rank rank, const std::string& reason, EpochEvent event) {
  ControlPage* page = regions_.control(rank);
  const uint32_t ended = page->epoch.load();
  if (page->failed_epoch.load() < ended) PublishFailure(page, ended, absl::AbortedError(reason));
  FailLocked(rank, reason, event);
}

void HostedJob::OnEvent(Rank rank, const v1::ExecutorEvent& event) {
  absl::MutexLock lock(&mu_);
  HostedRank& slot = SlotOf(rank);
  v1::WorkerEvent out;
  switch (event.event_case()) {
    case v1::ExecutorEvent::kReady:
      if (slot.ending) return;
      slot.ready = true;
      slot.ready_at = SteadyNow();
      GivePutLocked(static_cast<int>(rank.value()));
      SendWishLocked(slot);
      if (local().spans_workers()) {
        if (phase_ == EpochPhase::kPreparing) PrepareRankLocked(slot);
        return;
      }
      slot.quiet = true;
      MaybePreparedLocked();
      return;
    case v1::ExecutorEvent::kQuiesced:
      if (event.quiesced().epoch() < epoch_.value()) return;
      // Nobody asked: there is nothing that it is needed for.
      if (slot.host != Incarnation() && phase_ == EpochPhase::kRunning) slot.left = true;
      if (slot.ending) return;
      // One that was told to leave before it was told to listen answers again.
      if (local().spans_workers() && event.quiesced().address().empty()) return;
      slot.address = event.quiesced().address();
      slot.quiet = true;
      MaybePreparedLocked();
      return;
    case v1::ExecutorEvent::kOrder:
      if (event.order().epoch() != epoch_.value()) return;
      slot.pending_order = event.order();
      slot.pending_order.set_job_id(job_id_);
      slot.pending_order.set_rank(static_cast<int>(rank.value()));
      slot.pending_order.set_creation(creation_);
      *out.mutable_order() = slot.pending_order;
      break;
    case v1::ExecutorEvent::kStep:
      slot.last_report = event.step();
      slot.last_report.set_job_id(job_id_);
      slot.last_report.set_rank(static_cast<int>(rank.value()));
      slot.last_report.set_creation(creation_);
      *out.mutable_step() = slot.last_report;
      break;
    case v1::ExecutorEvent::kFailure:
      if (!slot.ready) slot.why_ended = absl::StrCat("started: ", event.failure().reason());
      if (event.failure().epoch() == epoch_.value()) {
        const int code = event.failure().code();
        FailLocked(rank, absl::StrCat("rank ", rank.value(), ": ", event.failure().reason()),
                   EpochEvent::kFailure,
                   code == 0 ? absl::StatusCode::kAborted : static_cast<absl::StatusCode>(code));
      }
      return;
    case v1::ExecutorEvent::kSaving:
      slot.saving_path = event.saving().path();
      return;
    case v1::ExecutorEvent::kPutGone:
      OnPutGoneLocked(rank, event.put_gone());
      return;
    case v1::ExecutorEvent::kSave:
      OnSaveReportLocked(rank, event.save());
      return;
    case v1::ExecutorEvent::kStarted:
      if (event.started().epoch() == epoch_.value()) RecordOf(rank).lacks_values.store(0);
      return;
    case v1::ExecutorEvent::EVENT_NOT_SET:
      return;
  }
  emit_(out);
}

}  // namespace tessera
