#include "worker/keeper/put_forwarder.h"

#include <atomic>
#include <utility>

namespace tessera {

void PutForwarder::Offer(std::shared_ptr<const StagedPut> put) {
  put_.Begin(put->put);
  staged_ = std::move(put);
  const LocalRanks& local = context_->local();
  for (int i = 0; i < local.count(); ++i) GiveTo(Rank(local.first() + i));
}

void PutForwarder::GiveTo(Rank rank) {
  ExecutorSlot& slot = executors_->Of(rank);
  if (!put_.is_offered() || !slot.ready) return;
  v1::ExecutorCommand command;
  command.mutable_put()->set_put(staged_->put);
  command.mutable_put()->set_manifest_offset_bytes(staged_->manifest_offset_bytes);
  command.mutable_put()->set_manifest_size_bytes(staged_->manifest_size_bytes);
  // Before it is sent: an executor that fails at once must be known as a holder.
  put_.Given(static_cast<int>(rank.value()));
  slot.Send(command, {staged_->file.fd()});
}

void PutForwarder::Drop() {
  // The worker's descriptor. Executors have their own until they say that they let go.
  staged_ = nullptr;
  v1::ExecutorCommand command;
  command.mutable_drop_put()->set_put(put_.put());
  executors_->SendAll(command);
}

void PutForwarder::Withdraw(uint64_t put) {
  if (put != put_.put() || !put_.is_offered()) return;
  put_.Withdraw(put);
  Drop();
}

void PutForwarder::OnGone(Rank rank, const v1::ExecutorPutGone& gone) {
  const bool was_offered = put_.is_offered();
  put_.Gone(static_cast<int>(rank.value()), gone.put(), gone.failure());
  // One rank that cannot apply it is enough: the others would offer it in vain.
  if (was_offered && !put_.is_offered()) Drop();
}

void PutForwarder::OnHolderEnded(Rank rank) {
  const bool was_offered = put_.is_offered();
  put_.Ended(static_cast<int>(rank.value()));
  if (was_offered && !put_.is_offered()) Drop();
}

PutForwarder::Progress PutForwarder::ProgressOf(uint64_t put) const {
  Progress progress;
  // Looked at in this order: none that is over can be decided afterwards.
  // The other order could miss a decision between the two looks and report the put as void.
  progress.is_over = put_.IsOver(put);
  if (put == put_.put()) progress.failure = put_.failure();
  const GroupPage& group = *context_->regions.group();
  progress.decided = FindPut(group, put);
  if (!progress.decided.has_value()) return progress;
  progress.is_applied = true;
  for (int i = 0; i < context_->local().count(); ++i) {
    // Decided, but not yet in each shard: readers of the state may not see it yet.
    if (group.ranks[i].applied_step.load(std::memory_order_acquire) < progress.decided->step)
      progress.is_applied = false;
  }
  return progress;
}

}  // namespace tessera
