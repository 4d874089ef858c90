#include "worker/keeper/attach_table.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/same_secret.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "layout/layout_digest.h"
#include "shm/local_messages.h"

namespace tessera {
namespace {

// How long a rank is kept for the trainer that was attached when the daemon before ended: as long
// as a trainer waits.
constexpr absl::Duration kFormerTrainerTimeout = absl::Minutes(2);

// Whether a trainer that was attached as `claimed` is the one that was attached last, as `former`.
// A daemon may have ended before it could tell the trainer its newest number.
// So any earlier number of the rank counts: nobody else was given one.
bool IsFormer(int64_t claimed, Incarnation former) {
  return claimed > 0 && claimed <= former.value();
}

constexpr int kAnyRank = -1;  // AttachRequest.rank

std::string NameOf(const v1::AttachRequest& request) {
  return request.rank() == kAnyRank ? "any rank" : absl::StrCat("rank ", request.rank());
}

// `process`: a descriptor of it.
// A descriptor of a process, unlike its pid, never comes to mean another one.
bool IsRunning(const UniqueFd& process) {
  pollfd ended = {process.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

}  // namespace

bool HasBegunStep(const ControlPage& page) {
  const auto begins = [&page](const Op& op) {
    return op.epoch == page.epoch.load() &&
           (op.kind == OpKind::kUnshard || op.kind == OpKind::kReduce ||
            op.kind == OpKind::kWriteGradient);
  };
  // Acquire, and first: of an operation that counts as consumed the word below is seen.
  const uint32_t consumed = page.consumed.load(std::memory_order_acquire);
  // A counter that a trainer spoiled gives a large difference. No more than the ring is looked at.
  const uint32_t num_pending = std::min<uint32_t>(page.submitted.value.load() - consumed, kRingOps);
  for (uint32_t i = 0; i < num_pending; ++i) {
    if (begins(page.ring[(consumed + i) % kRingOps])) return true;
  }
  return page.within_step.load() != 0;
}

absl::Status CheckTrainer(const JobContext& context, const std::string& attach_key,
                          const v1::AttachRequest& request, const PacketPeer& peer) {
  const LocalRanks& local = context.local();
  const int world_size = context.regions.config().world_size;
  // Who it is comes first: a process that may not attach learns nothing else of the job.
  const std::string who = absl::StrCat("job '", context.job_id, "': ");
  // The kernel names the peer's user. What the request says of itself decides nothing.
  if (!IsOwnUser(peer)) {
    // A job without a key lets no other user in, whatever is shown.
    if (attach_key.empty() || !IsSameSecret(attach_key, request.attach_key())) {
      return absl::PermissionDeniedError(
          absl::StrCat(who, "a process of user ", peer.uid,
                       " attaches with the key that the coordinator gives the job's owner, and "
                       "has shown another one, or none"));
    }
    // An executor reads and writes all ranks' memory, which only the worker's user may.
    if (request.hosts_executor()) {
      return absl::PermissionDeniedError(
          absl::StrCat(who, "the trainer of ", NameOf(request), " runs as user ", peer.uid,
                       "; only a trainer of the worker's own user can have its executor in its "
                       "process (SessionOptions::host_executor)"));
    }
  }
  if (request.world_size() != world_size) {
    return absl::FailedPreconditionError(absl::StrCat("job '", context.job_id, "' has world size ",
                                                      world_size, ", the trainer says ",
                                                      request.world_size()));
  }
  if (request.rank() < kAnyRank || request.rank() >= world_size)
    return absl::NotFoundError(absl::StrCat(who, "no rank ", request.rank(), " of ", world_size));
  // Trainer and worker compute offsets apart. Equal digests mean that they compute the same ones.
  if (request.layout_digest() != LayoutDigest(context.regions.layout())) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, "the trainer of ", NameOf(request), " computed another layout"));
  }
  if (request.rank() == kAnyRank || local.Has(request.rank())) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(who, "rank ", request.rank(),
                                          " is on another worker; here are ranks ", local.first(),
                                          " to ", local.first() + local.count() - 1));
}

AttachTable::AttachTable(const JobContext* context, EpochMachine* epochs, ExecutorSlots* executors)
    : context_(context),
      epochs_(epochs),
      executors_(executors),
      entries_(context->local().count()) {
  // None that an earlier daemon, or the memory before this one, gave.
  // Numbers of daemons are compared (IsFormer), so each daemon begins above those before it.
  if (context_->vault != nullptr) next_attachment_ = absl::ToUnixMicros(WallNow());
}

void AttachTable::KeepFor(std::map<int, UniqueFd> former_trainers) {
  for (auto& [rank, process] : former_trainers) {
    if (!context_->local().Has(rank)) continue;
    Entry& entry = Of(Rank(rank));
    // What the page says was written by the daemon before: a number that it gave.
    entry.former = Incarnation(context_->RecordOf(Rank(rank)).attachment.load());
    entry.former_process = std::move(process);
    // By this daemon's clock: the time of the one before means nothing here.
    entry.former_until = SteadyNow() + kFormerTrainerTimeout;
  }
}

absl::StatusOr<Rank> AttachTable::RankFor(const v1::AttachRequest& request, absl::Time now) const {
  if (request.rank() != kAnyRank) return Rank(request.rank());
  const LocalRanks& local = context_->local();
  v1::AttachRequest one = request;
  for (int rank = local.first(); rank < local.first() + local.count(); ++rank) {
    one.set_rank(rank);
    if (CheckIsFree(Of(Rank(rank)), one, now).ok()) return Rank(rank);
  }
  return WithRetry(
      absl::AlreadyExistsError(absl::StrCat(
          "job '", context_->job_id, "': all ", local.count(),
          " of its ranks on this worker are attached to trainers, or kept for theirs")),
      v1::RETRY_WHEN_FREE);
}

absl::Status AttachTable::CheckIsFree(const Entry& entry, const v1::AttachRequest& request,
                                      absl::Time now) const {
  // Whether its process still runs does not matter: its socket is open, and the end of it ends the
  // attachment.
  if (entry.state == AttachState::kAttached) {
    return WithRetry(
        absl::AlreadyExistsError(absl::StrCat("job '", context_->job_id, "': rank ", request.rank(),
                                              " is attached to another trainer (attachment ",
                                              entry.attachment.value(), ")")),
        v1::RETRY_WHEN_FREE);
  }
  // The wait is bounded three ways: the former trainer comes, it ends, or its time is over.
  if (!IsFormer(request.former_attachment(), entry.former) && entry.former_process.valid() &&
      now < entry.former_until && IsRunning(entry.former_process)) {
    return WithRetry(
        absl::AlreadyExistsError(absl::StrCat(
            "job '", context_->job_id, "': rank ", request.rank(),
            " is kept for the trainer that was attached when the worker's daemon was "
            "replaced: until that one attaches again, or ends, or two minutes are over")),
        v1::RETRY_WHEN_FREE);
  }
  return absl::OkStatus();
}

bool AttachTable::IsInEpoch(Rank rank) const {
  // Acquire: what the executor reset when it opened the epoch is visible with it.
  return epochs_->phase() == EpochPhase::kRunning &&
         context_->regions.control(rank)->epoch.load(std::memory_order_acquire) ==
             static_cast<uint32_t>(epochs_->epoch().value());
}

bool AttachTable::IsInSave(Rank rank) const {
  const ControlPage& page = *context_->regions.control(rank);
  return IsInEpoch(rank) && executors_->Of(rank).host == Incarnation() &&
         page.within_step.load() == 0 &&
         page.progress_kind.load() == static_cast<uint32_t>(OpKind::kSave);
}

void AttachTable::EndWhatWasLeft(const Entry& entry, const v1::AttachRequest& request) {
  const Rank rank(request.rank());
  ExecutorSlot& slot = executors_->Of(rank);
  // Nor where its executor was in the process of the one before.
  if (slot.host != Incarnation() || (slot.vacant && epochs_->phase() == EpochPhase::kRunning)) {
    epochs_->Fail(rank, absl::StrCat("the trainer of rank ", rank.value(),
                                     ", which hosted the rank's executor, has left"));
    if (slot.host != Incarnation()) slot.End();
  }
  // Another trainer cannot continue in the middle of a step: its order would differ from its
  // peers'. What the page says of an epoch before, until this one's executor has opened it, is
  // over.
  if (!IsFormer(request.former_attachment(), entry.former) && IsInEpoch(rank) &&
      HasBegunStep(*context_->regions.control(rank))) {
    epochs_->Fail(
        rank, absl::StrCat("the trainer of rank ", rank.value(), " left in the middle of a step"));
  }
}

absl::StatusOr<GivenRank> AttachTable::Attach(v1::AttachRequest request, const PacketPeer& peer,
                                              absl::Time now) {
  ASSIGN_OR_RETURN(const Rank rank, RankFor(request, now));
  request.set_rank(rank.value());
  Entry& entry = Of(rank);
  RETURN_IF_ERROR(CheckIsFree(entry, request, now));
  if (context_->needs_hosts() && !request.hosts_executor())
    return absl::FailedPreconditionError(WhyItNeedsHost(rank));
  // Before the phase is looked at, which it may end.
  EndWhatWasLeft(entry, request);
  // While trainers come that host their executors, each of which ends an epoch, the next ones need
  // not wait for the next epoch to end it, too.
  if (epochs_->phase() != EpochPhase::kRunning && !HasHosts()) {
    return WithRetry(
        absl::FailedPreconditionError(absl::StrCat("job '", context_->job_id, "' is ",
                                                   Name(epochs_->phase()), ": try again")),
        v1::RETRY_SOON);
  }
  GivenRank given;
  // Before the state changes: if a descriptor cannot be made, the rank is still free.
  ASSIGN_OR_RETURN(given.fds, context_->regions.TrainerFds(rank));
  std::pair<UniqueFd, UniqueFd> sockets;
  if (request.hosts_executor()) {
    ASSIGN_OR_RETURN(sockets, CreatePacketSocketPair());
  }
  // Before the trainer has anything: it stays known also to the next daemon.
  // The rank's executors look at it before each path that a trainer names (ExecutorFiles).
  if (!IsOwnUser(peer)) context_->RecordOf(rank).had_foreign_trainer.store(1);
  // The rank is kept for nobody else from here on.
  entry.former_process.Reset();
  entry.former = Incarnation();  // The rank is another's from now on, or its own trainer's again.
  entry.state = AttachState::kAttached;
  entry.attachment = Incarnation(next_attachment_++);
  entry.finished = Incarnation();
  entry.reported.Clear();
  TESSERA_LOG(INFO, "job {} rank {}: trainer attached ({}), process {} of user {}",
              context_->job_id, rank.value(), entry.attachment.value(), peer.pid, peer.uid);
  given.response.set_rank(rank.value());
  given.response.set_attachment(entry.attachment.value());
  given.response.set_epoch(epochs_->epoch().value());
  given.response.set_outlives_daemon(context_->vault != nullptr);
  if (request.hosts_executor()) {
    // The executor that the rank has is ended in there, and the epoch with it.
    Offer(entry, rank, std::move(sockets.first), peer.pid, &given.response);
    given.fds.push_back(std::move(sockets.second));
    return given;
  }
  // Kept in memory that outlives this daemon, for the next one's KeepFor.
  // Not of one that hosts the executor: such a job ends with the daemon (docs/adr/0064).
  context_->RecordOf(rank).attachment.store(entry.attachment.value());
  if (context_->vault != nullptr)
    context_->vault->NoteTrainer(context_->vault_owner, rank, peer.pid);
  return given;
}

void AttachTable::Report(Rank rank, Incarnation attachment, const v1::Report& report) {
  Entry& entry = Of(rank);
  if (entry.state == AttachState::kAttached && entry.attachment == attachment)
    entry.reported = report;
}

void AttachTable::Describe(Rank rank, v1::RankStatus* status) const {
  const Entry& entry = Of(rank);
  status->set_attached(entry.state == AttachState::kAttached);
  status->set_finished_attachment(entry.finished.value());
  *status->mutable_reported() = entry.reported.values();
}

void AttachTable::Detach(Rank rank, Incarnation attachment, Leaving how) {
  Entry& entry = Of(rank);
  // Of an attachment that has ended: a newer trainer is not disturbed by it.
  if (entry.state != AttachState::kAttached || entry.attachment != attachment) return;
  entry.state = AttachState::kFree;
  // It closes the worker's end, which ends the executor that was offered and not yet taken.
  entry.offer = nullptr;
  TESSERA_LOG(INFO, "job {} rank {}: trainer {}", context_->job_id, rank.value(),
              how == Leaving::kDied ? "died" : "detached");
  if (context_->vault != nullptr)
    context_->vault->NoteTrainer(context_->vault_owner, rank, /*pid=*/0);
  // A clean end leaves the epoch to the next trainer, which continues where this one stopped.
  if (how == Leaving::kDone) entry.finished = attachment;
  if (how == Leaving::kDied) ++entry.num_deaths;
  if (how != Leaving::kDied || epochs_->is_closed()) return;
  // The other trainers go on after the save, and so does the next one of this rank, which waits for
  // its end. In another epoch they would be in it again, and that one would be at the next step.
  if (IsInSave(rank)) return;
  // Its gradients may be torn, and its peers wait for what it will not submit.
  epochs_->Fail(rank, absl::StrCat("the trainer of rank ", rank.value(), " died"));
  ExecutorSlot& slot = executors_->Of(rank);
  // An executor in the process that died is gone with it.
  if (slot.host == attachment) slot.End();
}

void AttachTable::Offer(Entry& entry, Rank rank, UniqueFd socket, int pid,
                        v1::AttachResponse* response) {
  entry.offer = std::make_unique<HostOffer>();
  entry.offer->socket = std::move(socket);
  entry.offer->pid = pid;
  entry.offer->attachment = entry.attachment;
  TESSERA_LOG(INFO, "job {} rank {}: its trainer, process {}, hosts its executor", context_->job_id,
              rank.value(), pid);
  // The rank's present executor has to end first: two of them would write to the same shard.
  epochs_->Fail(rank, absl::StrCat("the trainer of rank ", rank.value(),
                                   " hosts the rank's executor from now on"));
  // One that is being prepared waits for the new executor.
  response->set_epoch(epochs_->epoch().value() -
                      (epochs_->phase() == EpochPhase::kPreparing ? 1 : 0));
  executors_->Of(rank).End();
  response->set_needs_trainers_executor(context_->needs_hosts());
}

bool AttachTable::HasHosts() const {
  return context_->needs_hosts() ||
         std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.offer != nullptr; }) ||
         std::any_of(executors_->begin(), executors_->end(),
                     [](const ExecutorSlot& slot) { return slot.host != Incarnation(); });
}

std::string AttachTable::WhyItNeedsHost(Rank rank) const {
  std::string worker;
  for (const v1::RankPlacement& placement : epochs_->job().placements()) {
    if (placement.rank() == rank.value()) worker = placement.worker_id();
  }
  return absl::StrCat(
      "rank ", rank.value(), " of job '", context_->job_id,
      "' needs a trainer that has its executor in its process ",
      "(SessionOptions::host_executor): on worker '", worker,
      "' no process can map another's memory of the GPU: ", context_->regions.why_not_shared());
}

}  // namespace tessera
