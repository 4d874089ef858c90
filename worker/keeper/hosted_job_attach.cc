// Attachments, progress and what is said again after a reconnect.
#include <poll.h>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "layout/layout_digest.h"
#include "worker/keeper/hosted_job.h"
#include "worker/memory/descriptor_claim.h"

namespace tessera {
namespace {

// How long a reserved rank waits for its trainer to come for the descriptors.
constexpr absl::Duration kReservation = absl::Seconds(10);

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

}  // namespace

absl::StatusOr<v1::AttachResponse> HostedJob::Attach(const v1::AttachRequest& request,
                                                     absl::Time now) {
  const int world_size = regions_.config().world_size;
  if (request.world_size() != world_size) {
    return absl::FailedPreconditionError(absl::StrCat("job '", job_id_, "' has world size ",
                                                      world_size, ", the trainer says ",
                                                      request.world_size()));
  }
  if (request.rank() < 0 || request.rank() >= world_size) {
    return absl::NotFoundError(
        absl::StrCat("job '", job_id_, "': no rank ", request.rank(), " of ", world_size));
  }
  if (request.layout_digest() != LayoutDigest(regions_.layout())) {
    return absl::FailedPreconditionError(absl::StrCat("job '", job_id_, "': the trainer of rank ",
                                                      request.rank(), " computed another layout"));
  }
  if (!local().Has(request.rank())) {
    return absl::NotFoundError(absl::StrCat(
        "job '", job_id_, "': rank ", request.rank(), " is on another worker; here are ranks ",
        local().first(), " to ", local().first() + local().count() - 1));
  }
  absl::MutexLock lock(&mu_);
  HostedRank& slot = SlotOf(Rank(request.rank()));
  if (slot.attach_state == AttachState::kAttached ||
      (slot.attach_state == AttachState::kReserved && now < slot.reserved_until)) {
    return absl::AlreadyExistsError(absl::StrCat("job '", job_id_, "': rank ", request.rank(),
                                                 " is attached to another trainer (attachment ",
                                                 slot.attachment.value(), ")"));
  }
  const bool is_former = IsFormer(request.former_attachment(), slot.former);
  if (!is_former && slot.former_process.valid() && now < slot.former_until &&
      IsRunning(slot.former_process)) {
    return absl::AlreadyExistsError(
        absl::StrCat("job '", job_id_, "': rank ", request.rank(),
                     " is kept for the trainer that was attached when the worker's daemon was "
                     "replaced: until that one attaches again, or ends, or two minutes are over"));
  }
  // Nor where its executor was in the process of the one before.
  if (slot.host != Incarnation() || (slot.vacant && phase_ == EpochPhase::kRunning)) {
    FailLocked(Rank(request.rank()), absl::StrCat("the trainer of rank ", request.rank(),
                                                  ", which hosted the rank's "
                                                  "executor, has left"));
    if (slot.host != Incarnation()) EndExecutorLocked(slot);
  }
  // Another trainer cannot go on in the middle of a step: its order would differ from its peers'.
  // What the page says of an epoch before, until this one's executor has opened it, is over.
  const ControlPage& page = *regions_.control(Rank(request.rank()));
  if (!is_former && phase_ == EpochPhase::kRunning &&
      page.epoch.load(std::memory_order_acquire) == static_cast<uint32_t>(epoch_.value()) &&
      page.within_step.load() != 0) {
    FailLocked(Rank(request.rank()), absl::StrCat("the trainer of rank ", request.rank(),
                                                  " left in the middle of a step"));
  }
  // While trainers come that host their executors, each of which ends an epoch, the next ones need
  // not wait for the next epoch to end it, too.
  if (phase_ != EpochPhase::kRunning && !HasHostsLocked()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", job_id_, "' is ", Name(phase_), ": try again"));
  }
  slot.former_process.Reset();
  slot.attach_state = AttachState::kReserved;
  slot.attachment = Incarnation(next_attachment_++);
  slot.reserved_until = now + kReservation;
  v1::AttachResponse response;
  response.set_attachment(slot.attachment.value());
  response.set_epoch(epoch_.value());
  response.set_next_step(regions_.group()->decided_step.load() + 1);
  response.set_ticket(TicketOf({job_id_, creation_, Rank(request.rank()), slot.attachment}));
  *response.mutable_job() = job_;
  response.set_outlives_daemon(vault_ != nullptr);
  return response;
}

void HostedJob::NoteTrainer(Rank rank, Incarnation attachment, int pid) {
  RecordOf(rank).attachment.store(attachment.value());
  if (vault_ != nullptr) vault_->NoteTrainer(vault_owner_, rank, pid);
}

absl::StatusOr<std::vector<int>> HostedJob::Claim(Rank rank, Incarnation attachment,
                                                  absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (!local().Has(rank.value())) return absl::NotFoundError("no such rank");
  HostedRank& slot = SlotOf(rank);
  if (!needs_hosts()) return ClaimLocked(slot, rank, attachment, now);
  if (slot.attach_state == AttachState::kReserved && slot.attachment == attachment)
    slot.attach_state = AttachState::kFree;
  return absl::FailedPreconditionError(WhyItNeedsHostLocked(rank));
}

absl::StatusOr<std::vector<int>> HostedJob::ClaimLocked(HostedRank& slot, Rank rank,
                                                        Incarnation attachment, absl::Time now) {
  if (slot.attach_state != AttachState::kReserved || slot.attachment != attachment ||
      now >= slot.reserved_until) {
    return absl::NotFoundError(
        absl::StrCat("attachment ", attachment.value(), " of rank ", rank.value(), " expired"));
  }
  slot.attach_state = AttachState::kAttached;
  TESSERA_LOG(INFO, "job {} rank {}: trainer attached ({})", job_id_, rank.value(),
              attachment.value());
  return regions_.TrainerFds(rank);
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
  for (const v1::SaveReport& save : ended_saves_) *events.emplace_back().mutable_save() = save;
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
      status.set_step(page.progress_step.load());  // In this order: see ControlPage.
      status.set_pass(page.progress_pass.load());
      status.set_sequence(page.progress_sequence.load());
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
