// Attachments, progress and what is said again after a reconnect.
#include <poll.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "job/worker_events.h"
#include "layout/layout_digest.h"
#include "worker/keeper/hosted_job.h"
#include "worker/memory/local_messages.h"

namespace tessera {
namespace {

std::string Doing(const ControlPage& page, const ModelLayout& layout) {
  const uint32_t kind = page.progress_kind.load();
  if (kind == 0) return "idle";
  const int32_t unit = page.progress_unit.load();
  std::string text = OpName(static_cast<OpKind>(kind));
  if (unit >= 0 && unit < static_cast<int32_t>(layout.units.size())) {
    absl::StrAppend(&text, " ", layout.units[unit].flat.unit_name());
  }
  return text;
}

// Whether a trainer that was attached as `claimed` is the one that was attached last, as `former`.
// A daemon may have ended before it could tell the trainer its newest number.
bool IsFormer(int64_t claimed, Incarnation former) {
  return claimed > 0 && claimed <= former.value();
}

// `process`: a descriptor of it.
bool IsRunning(const UniqueFd& process) {
  pollfd ended = {process.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

// Takes as long wherever they differ.
bool AreEqual(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differ == 0;
}

}  // namespace

absl::Status HostedJob::CheckTrainer(const v1::AttachRequest& request,
                                     const PacketPeer& peer) const {
  const int world_size = regions_.config().world_size;
  const std::string who = absl::StrCat("job '", job_id_, "': ");
  if (!IsOwnUser(peer)) {
    absl::MutexLock lock(&mu_);
    if (job_.attach_key().empty() || !AreEqual(job_.attach_key(), request.attach_key())) {
      return absl::PermissionDeniedError(
          absl::StrCat(who, "a process of user ", peer.uid,
                       " attaches with the key that the coordinator gives the job's owner, and "
                       "has shown another one, or none"));
    }
    if (request.hosts_executor()) {
      return absl::PermissionDeniedError(
          absl::StrCat(who, "the trainer of rank ", request.rank(), " runs as user ", peer.uid,
                       "; only a trainer of the worker's own user can have its executor in its "
                       "process (SessionOptions::host_executor)"));
    }
  }
  if (request.world_size() != world_size) {
    return absl::FailedPreconditionError(absl::StrCat("job '", job_id_, "' has world size ",
                                                      world_size, ", the trainer says ",
                                                      request.world_size()));
  }
  if (request.rank() < 0 || request.rank() >= world_size)
    return absl::NotFoundError(absl::StrCat(who, "no rank ", request.rank(), " of ", world_size));
  if (request.layout_digest() != LayoutDigest(regions_.layout())) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, "the trainer of rank ", request.rank(), " computed another layout"));
  }
  if (local().Has(request.rank())) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(who, "rank ", request.rank(),
                                          " is on another worker; here are ranks ", local().first(),
                                          " to ", local().first() + local().count() - 1));
}

absl::Status HostedJob::CheckIsFreeLocked(const HostedRank& slot, const v1::AttachRequest& request,
                                          absl::Time now) const {
  if (slot.attach_state == AttachState::kAttached) {
    return WithRetry(
        absl::AlreadyExistsError(absl::StrCat("job '", job_id_, "': rank ", request.rank(),
                                              " is attached to another trainer (attachment ",
                                              slot.attachment.value(), ")")),
        v1::RETRY_WHEN_FREE);
  }
  if (!IsFormer(request.former_attachment(), slot.former) && slot.former_process.valid() &&
      now < slot.former_until && IsRunning(slot.former_process)) {
    return WithRetry(
        absl::AlreadyExistsError(absl::StrCat(
            "job '", job_id_, "': rank ", request.rank(),
            " is kept for the trainer that was attached when the worker's daemon was "
            "replaced: until that one attaches again, or ends, or two minutes are over")),
        v1::RETRY_WHEN_FREE);
  }
  return absl::OkStatus();
}

void HostedJob::EndWhatWasLeftLocked(HostedRank& slot, const v1::AttachRequest& request) {
  const Rank rank(request.rank());
  // Nor where its executor was in the process of the one before.
  if (slot.host != Incarnation() || (slot.vacant && phase_ == EpochPhase::kRunning)) {
    FailLocked(rank, absl::StrCat("the trainer of rank ", rank.value(),
                                  ", which hosted the rank's executor, has left"));
    if (slot.host != Incarnation()) EndExecutorLocked(slot);
  }
  // Another trainer cannot continue in the middle of a step: its order would differ from its
  // peers'. What the page says of an epoch before, until this one's executor has opened it, is
  // over.
  const ControlPage& page = *regions_.control(rank);
  if (!IsFormer(request.former_attachment(), slot.former) && phase_ == EpochPhase::kRunning &&
      page.epoch.load(std::memory_order_acquire) == static_cast<uint32_t>(epoch_.value()) &&
      page.within_step.load() != 0) {
    FailLocked(rank,
               absl::StrCat("the trainer of rank ", rank.value(), " left in the middle of a step"));
  }
}

absl::StatusOr<GivenRank> HostedJob::Attach(const v1::AttachRequest& request,
                                            const PacketPeer& peer, absl::Time now) {
  RETURN_IF_ERROR(CheckTrainer(request, peer));
  const Rank rank(request.rank());
  absl::MutexLock lock(&mu_);
  HostedRank& slot = SlotOf(rank);
  RETURN_IF_ERROR(CheckIsFreeLocked(slot, request, now));
  if (needs_hosts() && !request.hosts_executor())
    return absl::FailedPreconditionError(WhyItNeedsHostLocked(rank));
  EndWhatWasLeftLocked(slot, request);
  // While trainers come that host their executors, each of which ends an epoch, the next ones need
  // not wait for the next epoch to end it, too.
  if (phase_ != EpochPhase::kRunning && !HasHostsLocked()) {
    return WithRetry(absl::FailedPreconditionError(
                         absl::StrCat("job '", job_id_, "' is ", Name(phase_), ": try again")),
                     v1::RETRY_SOON);
  }
  GivenRank given;
  ASSIGN_OR_RETURN(given.fds, regions_.TrainerFds(rank));
  std::pair<UniqueFd, UniqueFd> sockets;
  if (request.hosts_executor()) {
    ASSIGN_OR_RETURN(sockets, CreatePacketSocketPair());
  }
  if (!IsOwnUser(peer)) RecordOf(rank).had_foreign_trainer.store(1);
  slot.former_process.Reset();
  slot.attach_state = AttachState::kAttached;
  slot.attachment = Incarnation(next_attachment_++);
  TESSERA_LOG(INFO, "job {} rank {}: trainer attached ({}), process {} of user {}", job_id_,
              rank.value(), slot.attachment.value(), peer.pid, peer.uid);
  given.response.set_attachment(slot.attachment.value());
  given.response.set_epoch(epoch_.value());
  given.response.set_outlives_daemon(vault_ != nullptr);
  if (request.hosts_executor()) {
    TakeOfferLocked(slot, rank, std::move(sockets.first), peer.pid, &given.response);
    given.fds.push_back(std::move(sockets.second));
    return given;
  }
  RecordOf(rank).attachment.store(slot.attachment.value());
  if (vault_ != nullptr) vault_->NoteTrainer(vault_owner_, rank, peer.pid);
  return given;
}

void HostedJob::Detach(Rank rank, Incarnation attachment, bool clean) {
  absl::MutexLock lock(&mu_);
  HostedRank& slot = SlotOf(rank);
  if (slot.attach_state != AttachState::kAttached || slot.attachment != attachment) return;
  slot.attach_state = AttachState::kFree;
  slot.offer = nullptr;
  TESSERA_LOG(INFO, "job {} rank {}: trainer {}", job_id_, rank.value(),
              clean ? "detached" : "died");
  if (vault_ != nullptr) vault_->NoteTrainer(vault_owner_, rank, /*pid=*/0);
  if (clean || closing_) return;
  FailLocked(rank, absl::StrCat("the trainer of rank ", rank.value(), " died"));
  if (slot.host == attachment) EndExecutorLocked(slot);
}

void HostedJob::KillExecutor(Rank rank) {
  if (!local().Has(rank.value())) return;
  absl::MutexLock lock(&mu_);
  HostedRank& slot = SlotOf(rank);
  if (slot.host != Incarnation()) return EndExecutorLocked(slot);
  if (slot.executor != nullptr) slot.executor->Kill();
}

std::vector<v1::WorkerEvent> HostedJob::Unacknowledged() const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::WorkerEvent> events;
  for (const HostedRank& slot : ranks_) {
    if (slot.last_report.epoch() != 0) *events.emplace_back().mutable_step() = slot.last_report;
    if (slot.pending_order.epoch() != 0)
      *events.emplace_back().mutable_order() = slot.pending_order;
  }
  for (const v1::SaveReport& save : ended_saves_.reports())
    *events.emplace_back().mutable_save() = save;
  if (phase_ == EpochPhase::kPrepared) events.push_back(PreparedEventLocked());
  if (phase_ == EpochPhase::kFailed && failure_.has_failure()) events.push_back(failure_);
  return events;
}

v1::JobProgress HostedJob::Progress() const {
  v1::JobProgress progress;
  progress.set_job_id(job_id_);
  progress.set_creation(creation_);
  progress.set_fake_all_gather(regions_.config().fake_all_gather);
  progress.set_fake_reduce_scatter(regions_.config().fake_reduce_scatter);
  absl::MutexLock lock(&mu_);
  progress.set_epoch(epoch_.value());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank rank(local().first() + static_cast<int64_t>(i));
    const ControlPage& page = *regions_.control(rank);
    v1::RankStatus& status = (*progress.mutable_ranks())[static_cast<int>(rank.value())];
    // Until its executor has opened the epoch, the page tells of an earlier one: the same step may
    // have got further there, and the coordinator would take that for a rank that went past others.
    if (page.epoch.load(std::memory_order_acquire) == static_cast<uint32_t>(epoch_.value())) {
      // In this order: see ControlPage. A trainer can write there.
      const auto count = [](const std::atomic<int64_t>& word) {
        return std::clamp<int64_t>(word.load(), 0, kMaxCounter);
      };
      status.set_step(count(page.progress_step));
      status.set_pass(count(page.progress_pass));
      status.set_sequence(count(page.progress_sequence));
    }
    status.set_doing(Doing(page, regions_.layout()));
    status.set_attached(ranks_[i].attach_state == AttachState::kAttached);
    const RankMemoryBytes bytes = regions_.Measure(rank);
    status.set_parameter_bytes(bytes.parameters);
    status.set_gradient_bytes(bytes.gradients);
    status.set_optimizer_bytes(bytes.optimizer);
    status.set_executor_pid(ranks_[i].executor != nullptr ? ranks_[i].executor->pid() : 0);
  }
  return progress;
}

}  // namespace tessera
