#include "coordinator/core/coordinator_state.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "base/status_macros.h"

namespace tessera::coordinator {

CoordinatorState::CoordinatorState(const CoordinatorOptions& options)
    : options(options), orphans(options.max_jobs), durable_(options.request_capacity) {}

absl::Status CoordinatorState::Replay(const std::vector<StateRecord>& records) {
  for (const StateRecord& record : records) durable_.Apply(record);
  RETURN_IF_ERROR(durable_.CheckConsistent());
  // After all other records, because only the orders of each job's last epoch count.
  for (const StateRecord& record : records) {
    const auto* order = std::get_if<OrderRecord>(&record);
    const Job* job = order == nullptr ? nullptr : FindJob(order->job);
    if (job == nullptr || job->status.epoch != order->epoch) continue;
    Runtime(order->job, *job).order.Restore(order->position, order->entry);
  }
  for (auto& [id, runtime] : runtimes_) runtime.order.FinishRestore();
  return absl::OkStatus();
}

void CoordinatorState::Put(StateRecord record, Effects* effects) {
  undos_.push_back(durable_.UndoOf(record));  // Before Apply: it keeps what the record replaces.
  durable_.Apply(record);
  effects->records.push_back(std::move(record));
}

void CoordinatorState::OnRollback(std::function<void()> undo) {
  undos_.push_back([undo = std::move(undo)](DurableState*) { undo(); });
}

bool CoordinatorState::Accept() {
  // Most events change nothing durable, and then no job can have gone.
  if (undos_.empty()) return false;
  undos_.clear();
  for (const JobId& job : replaced_) unreadable_.erase(job);
  replaced_.clear();
  // Not before, because a rollback would have brought the job back.
  for (auto it = runtimes_.begin(); it != runtimes_.end();) {
    it = FindJob(it->first) == nullptr ? runtimes_.erase(it) : std::next(it);
  }
  for (auto it = avoided.begin(); it != avoided.end();) {
    it = FindJob(it->first) == nullptr ? avoided.erase(it) : std::next(it);
  }
  return true;
}

void CoordinatorState::Rollback() {
  replaced_.clear();
  // In reverse order, because each undo restores what its own record replaced.
  for (; !undos_.empty(); undos_.pop_back()) undos_.back()(&durable_);
}

const EpochRuntime* CoordinatorState::FindRuntime(const JobId& id, const Job& job) const {
  auto it = runtimes_.find(id);
  // The runtime of an older epoch is as good as none: nothing that was heard in it may count now.
  return it == runtimes_.end() || it->second.epoch != job.status.epoch ? nullptr : &it->second;
}

EpochRuntime& CoordinatorState::Runtime(const JobId& id, const Job& job) {
  if (FindRuntime(id, job) == nullptr) {
    EpochRuntime runtime(job.status.epoch, job.status.placements, job.spec, job.committed_step);
    EpochRuntime& last = runtimes_[id];
    // Until a rank reports in the new epoch, views show what it reported last.
    if (last.epoch < runtime.epoch) runtime.last_seen = std::move(last.last_seen);
    last = std::move(runtime);
  }
  return runtimes_[id];
}

Orphans::Holders CoordinatorState::BelievedHolders(const Orphans::Key& key) const {
  const Orphans::Holders* holders = orphans.Find(key);
  if (holders == nullptr) return {};
  Orphans::Holders believed = *holders;
  const Job* known = FindJob(key.first);
  // While it takes over, the journal's placements may be old ones, and no epoch begins anyway.
  if (known == nullptr || known->generation != key.second || takes_over()) return believed;
  for (auto it = believed.begin(); it != believed.end();) {
    const bool is_claim_alone =
        !it->second.described.has_value() && !known->status.HasRankOn(it->first);
    it = is_claim_alone ? believed.erase(it) : std::next(it);
  }
  return believed;
}

bool CoordinatorState::IsBehind(const JobId& id, const Job& job) const {
  const Orphans::Key key(id, job.generation);
  if (orphans.Find(key) == nullptr) return false;
  const Orphans::Holders holders = BelievedHolders(key);
  // The next epoch of such a job could have the number of one that its workers were in already.
  return std::any_of(holders.begin(), holders.end(), [&](const auto& holder) {
    return holder.second.IsAheadOf(job.status.epoch, job.HasBegun());
  });
}

void CoordinatorState::EndTakeOver(absl::Time now, absl::Duration pause, Effects* effects) {
  if (take_over_until_.has_value()) *take_over_until_ += pause;
  if (take_over_until_.has_value() && now >= *take_over_until_) take_over_until_.reset();
  // Here, not where it ends, so that what could not be written is written at the next tick.
  ClusterRecord cluster = durable_.cluster();
  if (take_over_until_.has_value() || !cluster.is_taking_over) return;
  cluster.is_taking_over = false;
  Put(cluster, effects);
}

}  // namespace tessera::coordinator
