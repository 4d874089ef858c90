#include "worker/keeper/hosted_job.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/worker_events.h"
#include "shm/control_page.h"

namespace tessera {
namespace {

std::string Doing(const ControlPage& page, const ModelLayout& layout) {
  const uint32_t kind = page.progress_kind.load();
  if (kind == 0) return "idle";
  const int32_t unit = page.progress_unit.load();
  std::string text = OpName(static_cast<OpKind>(kind));
  // The unit is a word of shared memory, so it is checked before it is an index.
  if (unit >= 0 && unit < static_cast<int32_t>(layout.units.size())) {
    absl::StrAppend(&text, " ", layout.units[unit].flat.unit_name());
  }
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostedJob>> HostedJob::Create(
    const v1::Job& job, const LocalRanks& local, const std::string& data_host,
    ExecutorLauncher* launcher, Emit emit, DeviceMemory* device_memory,
    absl::Duration answer_timeout, MemoryBudget* budget, JobVault* vault) {
  ASSIGN_OR_RETURN(JobRegions regions, JobRegions::Create(job, local, device_memory, budget));
  if (device_memory != nullptr) vault = nullptr;  // It holds no memory of a GPU.
  // Before executors run: whatever they write from here on outlives the daemon.
  std::string owner = vault == nullptr ? "" : vault->PutJob(job, regions);
  std::unique_ptr<HostedJob> hosted(
      new HostedJob(job, {job.job_id(), job.generation(), std::move(regions), data_host, launcher,
                          std::move(emit), answer_timeout, vault, std::move(owner)}));
  const absl::Status started = hosted->StartSupervisors();
  // The vault must not keep memory that nobody will come back for.
  if (!started.ok()) hosted->MarkDropped();
  RETURN_IF_ERROR(started);
  return hosted;
}

absl::StatusOr<std::unique_ptr<HostedJob>> HostedJob::Restore(
    JobVault::HeldJob held, const LocalRanks& local, const std::string& data_host,
    ExecutorLauncher* launcher, Emit emit, MemoryBudget* budget, JobVault* vault) {
  ASSIGN_OR_RETURN(JobRegions regions,
                   JobRegions::Restore(held.job, local, budget, std::move(held.memory)));
  std::unique_ptr<HostedJob> hosted(new HostedJob(
      held.job, {held.job.job_id(), held.job.generation(), std::move(regions), data_host, launcher,
                 std::move(emit), kAnswerTimeout, vault, std::move(held.owner)}));
  // Before supervisors start new executors: trainers must see the end of the old epoch first.
  hosted->EndEpochOfDaemonBefore(std::move(held.trainers));
  RETURN_IF_ERROR(hosted->StartSupervisors());
  return hosted;
}

absl::Status HostedJob::StartSupervisors() {
  for (int rank = local().first(); rank < local().first() + local().count(); ++rank) {
    ASSIGN_OR_RETURN(std::unique_ptr<RankSupervisor> supervisor,
                     RankSupervisor::Start(&context_, &parts_, Rank(rank)));
    // Those that were started run already. If one cannot be, the destructor ends the others.
    supervisors_.push_back(std::move(supervisor));
  }
  return absl::OkStatus();
}

void HostedJob::EndEpochOfDaemonBefore(std::map<int, UniqueFd> trainers) {
  absl::MutexLock lock(&parts_.mu);
  parts_.trainers.KeepFor(std::move(trainers));
  parts_.epochs.EndThatOfDaemonBefore();
}

HostedJob::HostedJob(const v1::Job& job, JobContext context)
    : context_(std::move(context)), parts_(&context_, job) {}

HostedJob::~HostedJob() {
  const absl::Status reason =
      absl::CancelledError(absl::StrCat("job '", context_.job_id, "' ends on this worker"));
  Epoch epoch;
  {
    absl::MutexLock lock(&parts_.mu);
    epoch = parts_.epochs.epoch();
    // In one section: a supervisor that is launching takes the lock afterwards, and sees the job
    // closed.
    parts_.epochs.Close(reason);
    for (ExecutorSlot& slot : parts_.executors) slot.End();
  }
  // Supervisors need the lock to end, so it is not held while they are joined.
  supervisors_.clear();  // Waits for their threads.
  // After the executors' end: nobody writes there any more.
  if (context_.vault != nullptr && is_dropped_.load()) context_.vault->Drop(context_.vault_owner);
  // No executor lives, but perhaps one in a trainer that stands still. One may have been killed
  // before it could tell its trainer, and a trainer that recovers from the end of an epoch must
  // learn that none follows.
  for (int rank = local().first(); rank < local().first() + local().count(); ++rank) {
    ControlPage* page = regions().control(Rank(rank));
    const uint32_t ended = static_cast<uint32_t>(epoch.value()), failed = page->failed_epoch.load();
    // A trainer that has read the reason is not told twice.
    if (failed >= ended && page->failure_code == reason.raw_code()) continue;
    // The number never goes back: a trainer may have seen the end of a later epoch in the page.
    PublishFailure(page, std::max(ended, failed), reason);
  }
}

void HostedJob::Prepare(const v1::PrepareEpoch& prepare) {
  absl::MutexLock lock(&parts_.mu);
  parts_.epochs.Prepare(prepare);
}

void HostedJob::Start(const v1::StartEpoch& start) {
  absl::MutexLock lock(&parts_.mu);
  parts_.epochs.Start(start);
}

void HostedJob::Release(const v1::OrderRelease& release) {
  absl::MutexLock lock(&parts_.mu);
  parts_.epochs.Release(release);
}

void HostedJob::Mismatch(const v1::OrderMismatch& mismatch) {
  absl::MutexLock lock(&parts_.mu);
  parts_.epochs.Mismatch(mismatch);
}

void HostedJob::WantSave(const v1::RequestedSave& requested) {
  absl::MutexLock lock(&parts_.mu);
  parts_.saves.Want(requested);
}

std::vector<v1::WorkerEvent> HostedJob::Unacknowledged() const {
  absl::MutexLock lock(&parts_.mu);
  std::vector<v1::WorkerEvent> events;
  // In the order in which they would have been sent.
  for (const ExecutorSlot& slot : parts_.executors) {
    if (slot.last_report.epoch() != 0) *events.emplace_back().mutable_step() = slot.last_report;
    if (slot.pending_order.epoch() != 0)
      *events.emplace_back().mutable_order() = slot.pending_order;
  }
  for (const v1::SaveReport& save : parts_.saves.ended())
    *events.emplace_back().mutable_save() = save;
  if (std::optional<v1::WorkerEvent> event = parts_.epochs.Unacknowledged(); event.has_value())
    events.push_back(*std::move(event));
  return events;
}

v1::JobProgress HostedJob::Progress() const {
  v1::JobProgress progress;
  progress.set_job_id(context_.job_id);
  progress.set_generation(context_.generation);
  progress.set_fake_all_gather(regions().config().fake_all_gather);
  progress.set_fake_reduce_scatter(regions().config().fake_reduce_scatter);
  absl::MutexLock lock(&parts_.mu);
  progress.set_epoch(parts_.epochs.epoch().value());
  for (int i = 0; i < local().count(); ++i) {
    const Rank rank(local().first() + i);
    const ControlPage& page = *regions().control(rank);
    v1::RankStatus& status = (*progress.mutable_ranks())[static_cast<int>(rank.value())];
    // Until its executor has opened the epoch, the page tells of an earlier one: the same step may
    // have got further there, and the coordinator would take that for a rank that went past others.
    if (page.epoch.load(std::memory_order_acquire) ==
        static_cast<uint32_t>(parts_.epochs.epoch().value())) {
      // In this order: see ControlPage. A trainer can write there.
      const auto count = [](const std::atomic<int64_t>& word) {
        return std::clamp<int64_t>(word.load(), 0, kMaxCounter);
      };
      status.set_step(count(page.progress_step));
      status.set_pass(count(page.progress_pass));
      status.set_sequence(count(page.progress_sequence));
    }
    status.set_doing(Doing(page, regions().layout()));
    parts_.trainers.Describe(rank, &status);
    // From the executor's ring, which no trainer can write to unless it hosts the executor.
    const RankSums sums = Sum(regions().flight(rank).totals);
    status.set_compute_seconds(sums.trainer_ns / 1e9);
    status.set_gradient_norm(sums.gradient_norm);
    const RankMemoryBytes bytes = regions().Measure(rank);
    status.set_parameter_bytes(bytes.parameters);
    status.set_gradient_bytes(bytes.gradients);
    status.set_optimizer_bytes(bytes.optimizer);
    const ExecutorSlot& slot = parts_.executors.Of(rank);
    status.set_executor_pid(slot.executor != nullptr ? slot.executor->pid() : 0);
  }
  return progress;
}

RankCounts HostedJob::Counts(Rank rank) const {
  absl::MutexLock lock(&parts_.mu);
  return {parts_.executors.Of(rank).num_starts, parts_.trainers.num_deaths(rank),
          parts_.saves.CountsOf(rank)};
}

v1::HeldJob HostedJob::Describe() const {
  absl::MutexLock lock(&parts_.mu);
  v1::HeldJob held;
  *held.mutable_job() = parts_.epochs.job();
  // The coordinator knows these better than the worker.
  held.mutable_job()->clear_ranks();
  held.mutable_job()->clear_state_reason();
  // From the page, which a coordinator without its journal has to believe (docs/adr/0062).
  held.set_decided_step(regions().group()->decided_step.load());
  held.set_has_begun(has_begun());
  return held;
}

absl::StatusOr<GivenRank> HostedJob::Attach(const v1::AttachRequest& request,
                                            const PacketPeer& peer, absl::Time now) {
  std::string attach_key;
  if (!IsOwnUser(peer)) {
    absl::MutexLock lock(&parts_.mu);
    // A copy: the next Prepare replaces the job.
    attach_key = parts_.epochs.job().attach_key();
  }
  // Outside the lock, since it computes a digest of the whole layout.
  RETURN_IF_ERROR(CheckTrainer(context_, attach_key, request, peer));
  absl::MutexLock lock(&parts_.mu);
  // In one section with its epoch: no failure comes between the look at the phase and the
  // attachment.
  return parts_.trainers.Attach(request, peer, now);
}

void HostedJob::Detach(Rank rank, Incarnation attachment, Leaving how) {
  absl::MutexLock lock(&parts_.mu);
  parts_.trainers.Detach(rank, attachment, how);
}

void HostedJob::Report(Rank rank, Incarnation attachment, const v1::Report& report) {
  absl::MutexLock lock(&parts_.mu);
  parts_.trainers.Report(rank, attachment, report);
}

void HostedJob::OfferPut(std::shared_ptr<const StagedPut> put) {
  absl::MutexLock lock(&parts_.mu);
  parts_.puts.Offer(std::move(put));
}

void HostedJob::WithdrawPut(uint64_t put) {
  absl::MutexLock lock(&parts_.mu);
  parts_.puts.Withdraw(put);
}

HostedJob::PutProgress HostedJob::ProgressOfPut(uint64_t put) const {
  absl::MutexLock lock(&parts_.mu);
  return parts_.puts.ProgressOf(put);
}

void HostedJob::KillExecutor(Rank rank) {
  if (!local().Has(rank.value())) return;
  absl::MutexLock lock(&parts_.mu);
  ExecutorSlot& slot = parts_.executors.Of(rank);
  // Told by its socket. A kill would end the trainer's process.
  if (slot.host != Incarnation()) return slot.End();
  if (slot.executor != nullptr) slot.executor->Kill();
}

bool HostedJob::has_begun() const { return regions().group()->has_begun.load() != 0; }

Epoch HostedJob::epoch() const {
  absl::MutexLock lock(&parts_.mu);
  return parts_.epochs.epoch();
}

}  // namespace tessera
