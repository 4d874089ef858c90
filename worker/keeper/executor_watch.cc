#include "worker/keeper/executor_watch.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/steady_time.h"
#include "shm/control_page.h"
#include "shm/fd_passing.h"
#include "worker/keeper/executor_event.h"
#include "worker/keeper/standstill.h"

namespace tessera {
namespace {

// Between two looks at an executor that says nothing.
constexpr absl::Duration kLook = absl::Milliseconds(500);
// How long the end of a job waits for one; its memory is nobody's then.
constexpr absl::Duration kClosingWait = absl::Seconds(2);

}  // namespace

void ExecutorWatch::ReadEvents() {
  {
    absl::ReleasableMutexLock lock(&parts_->mu);
    if (parts_->executors.Of(rank_).host != Incarnation()) {
      lock.Release();
      return ReadHostedEvents();
    }
  }
  ReadLaunchedEvents();
}

void ExecutorWatch::ReadLaunchedEvents() {
  while (true) {
    AwaitLaunched();
    const absl::StatusOr<Packet> packet = ReceivePacket(socket_);
    // The end, or a message that no executor sends: either way nothing more of it counts.
    if (!packet.ok()) return;
    const absl::StatusOr<v1::ExecutorEvent> event = ParseExecutorEvent(packet->bytes);
    if (!event.ok()) {  // No executor of ours: it makes room for one.
      TESSERA_LOG(ERROR, "job {} rank {}: its executor: {}", context_->job_id, rank_.value(),
                  event.status().ToString());
      return;
    }
    OnEvent(*event);
  }
}

void ExecutorWatch::AwaitLaunched() {
  const absl::Duration patience = std::min(kStandstill, context_->answer_timeout);
  // Half of the patience at most: a look must fall into it.
  const int look_ms = static_cast<int>(absl::ToInt64Milliseconds(std::min(kLook, patience / 2)));
  Standstill standstill(patience, context_->regions.config().collective_timeout);
  const ControlPage& page = *context_->regions.control(rank_);
  while (true) {
    pollfd readable = {socket_, POLLIN, 0};
    // At least 1 ms: with 0 the loop would spin.
    const int ready = poll(&readable, 1, std::max(look_ms, 1));
    // A poll that fails is left to the read, which fails too and ends the executor.
    if (ready > 0 || (ready < 0 && errno != EINTR)) return;
    absl::MutexLock lock(&parts_->mu);
    EpochMachine& epochs = parts_->epochs;
    ExecutorSlot& slot = parts_->executors.Of(rank_);
    // It ends already, and the read sees that.
    if (slot.executor == nullptr || slot.ending) continue;
    Standstill::Look look;
    look.is_stopped = slot.executor->is_stopped();
    // Asked since both are true: there was something to leave, and an executor to ask.
    if (epochs.phase() == EpochPhase::kPreparing && slot.ready && !slot.quiet)
      look.asked = std::max(epochs.preparing_since(), slot.ready_at);
    // An older epoch's words in the page would look like an operation that does not end.
    if (epochs.phase() == EpochPhase::kRunning && page.epoch.load() == epochs.epoch().value()) {
      look.kind = page.progress_kind.load();
      look.consumed = page.consumed.load();
    }
    const std::optional<Standstill::Verdict> verdict = standstill.Judge(look, SteadyNow());
    if (!verdict.has_value()) continue;
    TESSERA_LOG(WARNING, "job {} rank {}: its executor, {}, {}{}", context_->job_id, rank_.value(),
                slot.executor->Describe(), verdict->why, verdict->end ? ": it is killed" : "");
    if (!verdict->end) continue;
    slot.why_ended = verdict->why;
    // The end is seen by the read of the socket, and reaped by the supervisor.
    return slot.End();
  }
}

bool ExecutorWatch::AwaitHosted() {
  const absl::Time begin = SteadyNow();
  while (true) {
    pollfd readable = {socket_, POLLIN, 0};
    const absl::Duration look = std::min(kLook, context_->answer_timeout);
    const int ready = poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(look)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    absl::MutexLock lock(&parts_->mu);
    EpochMachine& epochs = parts_->epochs;
    const absl::Time now = SteadyNow();
    // A trainer that was stopped may never answer. The job's end does not wait for it longer than
    // this.
    if (epochs.is_closed() && now - begin >= std::min(kClosingWait, context_->answer_timeout))
      return false;
    const ExecutorSlot& slot = parts_->executors.Of(rank_);
    const bool is_awaited =
        epochs.phase() == EpochPhase::kPreparing && (!slot.ready || !slot.quiet || slot.ending);
    if (!is_awaited ||
        now - std::max(epochs.preparing_since(), slot.launched_at) < context_->answer_timeout)
      continue;
    // It cannot be killed, since it is in a trainer's process: the rank fails instead.
    epochs.Fail(
        rank_,
        absl::StrCat("the executor of rank ", rank_.value(), ", ", slot.executor->Wait(),
                     ", did not answer within ", absl::FormatDuration(context_->answer_timeout)),
        EpochEvent::kGiveUp);
  }
}

void ExecutorWatch::ReadHostedEvents() {
  bool heeds = true;
  while (AwaitHosted()) {
    const absl::StatusOr<Packet> packet = ReceivePacket(socket_);
    // A packet that is too long says something of the sender, nothing of the socket.
    if (!packet.ok() && !absl::IsInvalidArgument(packet.status())) return;
    const absl::StatusOr<v1::ExecutorEvent> event =
        packet.ok() ? ParseExecutorEvent(packet->bytes) : packet.status();
    // What is not heeded is read to the end as well: only that shows that it writes no more.
    if (heeds && event.ok()) {
      OnEvent(*event);
    } else if (heeds) {
      TESSERA_LOG(ERROR, "job {} rank {}: its executor: {}", context_->job_id, rank_.value(),
                  event.status().ToString());
      heeds = false;  // No executor of ours: nothing that it says counts.
      absl::MutexLock lock(&parts_->mu);
      parts_->executors.Of(rank_).End();
    }
  }
}

void ExecutorWatch::OnReadyLocked() {
  EpochMachine& epochs = parts_->epochs;
  ExecutorSlot& slot = parts_->executors.Of(rank_);
  if (slot.ending) return;
  slot.ready = true;
  // Standstill counts from here: before, there was no executor to ask.
  slot.ready_at = SteadyNow();
  // A new executor knows neither what was offered nor what is wanted.
  parts_->puts.GiveTo(rank_);
  parts_->saves.SendRequest(slot);
  // Ranks of several workers need an address of the new epoch before they are quiet.
  if (context_->local().spans_workers()) {
    if (epochs.phase() == EpochPhase::kPreparing) epochs.PrepareRank(slot);
    return;
  }
  slot.quiet = true;
  epochs.MaybePrepared();
}

void ExecutorWatch::OnQuiescedLocked(const v1::ExecutorQuiesced& quiesced) {
  EpochMachine& epochs = parts_->epochs;
  ExecutorSlot& slot = parts_->executors.Of(rank_);
  // An answer to an older preparation.
  if (quiesced.epoch() < epochs.epoch().value()) return;
  // Nobody asked: there is nothing that it is needed for.
  if (slot.host != Incarnation() && epochs.phase() == EpochPhase::kRunning) slot.left = true;
  if (slot.ending) return;
  // One that was told to leave before it was told to listen answers again.
  if (context_->local().spans_workers() && quiesced.address().empty()) return;
  slot.address = quiesced.address();
  slot.quiet = true;
  epochs.MaybePrepared();
}

void ExecutorWatch::OnEvent(const v1::ExecutorEvent& event) {
  absl::MutexLock lock(&parts_->mu);
  EpochMachine& epochs = parts_->epochs;
  ExecutorSlot& slot = parts_->executors.Of(rank_);
  v1::WorkerEvent out;
  switch (event.event_case()) {
    case v1::ExecutorEvent::kReady:
      return OnReadyLocked();
    case v1::ExecutorEvent::kQuiesced:
      return OnQuiescedLocked(event.quiesced());
    case v1::ExecutorEvent::kOrder:
      // An executor speaks for its own rank only: job, rank and generation are set here.
      if (event.order().epoch() != epochs.epoch().value()) return;
      // Kept until it is answered: after a reconnect it is sent again.
      slot.pending_order = event.order();
      slot.pending_order.set_job_id(context_->job_id);
      slot.pending_order.set_rank(static_cast<int>(rank_.value()));
      slot.pending_order.set_generation(context_->generation);
      *out.mutable_order() = slot.pending_order;
      break;
    case v1::ExecutorEvent::kStep:
      slot.last_report = event.step();
      slot.last_report.set_job_id(context_->job_id);
      slot.last_report.set_rank(static_cast<int>(rank_.value()));
      slot.last_report.set_generation(context_->generation);
      *out.mutable_step() = slot.last_report;
      break;
    case v1::ExecutorEvent::kFailure:
      // So that the end of a start that failed says why.
      if (!slot.ready) slot.why_ended = absl::StrCat("started: ", event.failure().reason());
      if (event.failure().epoch() == epochs.epoch().value()) {
        const int code = event.failure().code();
        epochs.Fail(rank_, absl::StrCat("rank ", rank_.value(), ": ", event.failure().reason()),
                    EpochEvent::kFailure,
                    code == 0 ? absl::StatusCode::kAborted : static_cast<absl::StatusCode>(code));
      }
      return;
    case v1::ExecutorEvent::kSaving:
      // If it dies before it says otherwise, Reap removes what is there.
      slot.saving_path = event.saving().path();
      return;
    case v1::ExecutorEvent::kPutGone:
      parts_->puts.OnGone(rank_, event.put_gone());
      return;
    case v1::ExecutorEvent::kSave:
      parts_->saves.OnReport(rank_, event.save());
      return;
    case v1::ExecutorEvent::kStarted:
      if (event.started().epoch() == epochs.epoch().value())
        // It says so once it has the values.
        context_->RecordOf(rank_).lacks_values.store(0);
      return;
    case v1::ExecutorEvent::EVENT_NOT_SET:
      return;
  }
  // Emitting only queues, so it may be done under the lock.
  context_->emit(out);
}

}  // namespace tessera
