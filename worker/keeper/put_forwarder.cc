// Values that a process outside the job sets: the ranks are given them, vote for them after a step,
// and report when they have dropped them.
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/keeper/hosted_job.h"
#include "worker/memory/fd_passing.h"

namespace tessera {

void HostedJob::OfferPut(std::shared_ptr<const StagedPut> put) {
  absl::MutexLock lock(&mu_);
  put_.Begin(put->put);
  staged_put_ = std::move(put);
  for (int i = 0; i < local().count(); ++i) GivePutLocked(local().first() + i);
}

void HostedJob::GivePutLocked(int rank) {
  HostedRank& slot = SlotOf(Rank(rank));
  if (!put_.is_offered() || !slot.ready) return;
  v1::ExecutorCommand command;
  command.mutable_put()->set_put(staged_put_->put);
  command.mutable_put()->set_manifest_offset_bytes(staged_put_->manifest_offset_bytes);
  command.mutable_put()->set_manifest_size_bytes(staged_put_->manifest_size_bytes);
  put_.Given(rank);
  SendLocked(slot, command, {staged_put_->file.fd()});
}

void HostedJob::DropPutLocked() {
  staged_put_ = nullptr;
  v1::ExecutorCommand command;
  command.mutable_drop_put()->set_put(put_.put());
  for (HostedRank& slot : ranks_) SendLocked(slot, command);
}

void HostedJob::WithdrawPut(uint64_t put) {
  absl::MutexLock lock(&mu_);
  if (put != put_.put() || !put_.is_offered()) return;
  put_.Withdraw(put);
  DropPutLocked();
}

void HostedJob::OnPutGoneLocked(Rank rank, const v1::ExecutorPutGone& gone) {
  const bool was_offered = put_.is_offered();
  put_.Gone(static_cast<int>(rank.value()), gone.put(), gone.failure());
  if (was_offered && !put_.is_offered()) DropPutLocked();
}

void HostedJob::OnPutHolderEnded(Rank rank) {
  absl::MutexLock lock(&mu_);
  const bool was_offered = put_.is_offered();
  put_.Ended(static_cast<int>(rank.value()));
  if (was_offered && !put_.is_offered()) DropPutLocked();
}

HostedJob::PutProgress HostedJob::ProgressOfPut(uint64_t put) const {
  absl::MutexLock lock(&mu_);
  PutProgress progress;
  // Looked at in this order: none that is over can be decided afterwards.
  progress.is_over = put_.IsOver(put);
  if (put == put_.put()) progress.failure = put_.failure();
  const GroupPage& group = *regions_.group();
  progress.decided = FindPut(group, put);
  if (!progress.decided.has_value()) return progress;
  progress.is_applied = true;
  for (int i = 0; i < local().count(); ++i) {
    if (group.ranks[i].applied_step.load(std::memory_order_acquire) < progress.decided->step)
      progress.is_applied = false;
  }
  return progress;
}

}  // namespace tessera
