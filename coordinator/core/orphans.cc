#include "coordinator/core/orphans.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::coordinator {
namespace {

std::string Quoted(const std::set<WorkerId>& workers) {
  return absl::StrJoin(workers, ", ", [](std::string* out, const WorkerId& worker) {
    absl::StrAppend(out, "'", worker.value(), "'");
  });
}

}  // namespace

Orphans::Holder::Holder(const JobProgress& progress)
    : epoch(progress.epoch),
      is_in_its_epoch(std::any_of(progress.ranks.begin(), progress.ranks.end(),
                                  [](const auto& rank) { return rank.second.step > Step(0); })) {}

bool Orphans::Hear(const WorkerId& worker, const JobProgress& progress) {
  const Key key(progress.job, progress.generation);
  // Workers may list any jobs, so their number is bounded. The next heartbeat tries again.
  if (orphans_.count(key) == 0 && orphans_.size() >= capacity_) return false;
  const auto [holder, is_new] = orphans_[key].try_emplace(worker, Holder(progress));
  Holder now(progress);
  // A description is void once the worker is in another epoch.
  if (holder->second.epoch == now.epoch) now.described = std::move(holder->second.described);
  holder->second = std::move(now);
  return is_new || !holder->second.described.has_value();
}

void Orphans::Describe(const WorkerId& worker, HeldJob held) {
  const auto orphan = orphans_.find({held.job, held.generation});
  if (orphan == orphans_.end()) return;
  const auto holder = orphan->second.find(worker);
  if (holder == orphan->second.end()) return;
  // The description may be newer than the last heartbeat. Without this, the next heartbeat would
  // void it.
  holder->second.epoch = held.epoch;
  holder->second.described = std::move(held);
}

void Orphans::Listed(const WorkerId& worker, const std::set<Key>& keys) {
  for (auto it = orphans_.begin(); it != orphans_.end();) {
    // The worker has dropped the job, so it is not waited for any more.
    if (keys.count(it->first) == 0) it->second.erase(worker);
    it = it->second.empty() ? orphans_.erase(it) : std::next(it);
  }
}

const Orphans::Holders* Orphans::Find(const Key& key) const {
  const auto it = orphans_.find(key);
  return it == orphans_.end() ? nullptr : &it->second;
}

std::optional<Orphans::Key> Orphans::Newest(const JobId& job) const {
  std::optional<Key> newest;
  for (auto it = orphans_.lower_bound({job, Generation(0)});
       it != orphans_.end() && it->first.first == job; ++it) {
    // Keys are sorted by job, then by generation.
    newest = it->first;
  }
  return newest;
}

const HeldJob* Orphans::Latest(const Holders& holders) {
  const auto progress = [](const HeldJob& held) {
    return std::tie(held.epoch, held.has_begun, held.decided_step);
  };
  const HeldJob* latest = nullptr;
  for (const auto& [worker, holder] : holders) {
    const HeldJob* held = holder.described.has_value() ? &*holder.described : nullptr;
    if (held != nullptr && (latest == nullptr || progress(*latest) < progress(*held)))
      latest = held;
  }
  return latest;
}

std::string Orphans::OwnerOf(const Holders& holders) {
  std::optional<std::string> owner;
  for (const auto& [worker, holder] : holders) {
    if (!holder.described.has_value()) continue;
    // A guess could give one owner's job to another, so then only operators may change it.
    if (owner.has_value() && *owner != holder.described->owner) return "";
    owner = holder.described->owner;
  }
  return owner.value_or("");
}

std::set<WorkerId> Orphans::Missing(const Holders& holders) {
  std::set<WorkerId> missing;
  const HeldJob* latest = Latest(holders);
  if (latest == nullptr) return missing;
  // Each of these has ranks of the latest epoch, which could not begin without their shards.
  for (const HeldJob::Place& place : latest->places) {
    const auto holder = holders.find(place.worker);
    if (holder == holders.end() || !holder->second.described.has_value())
      missing.insert(place.worker);
  }
  for (const auto& [worker, holder] : holders) {
    // Such a worker may know a later step than every description so far.
    if (!holder.described.has_value() && holder.epoch >= latest->epoch) missing.insert(worker);
  }
  return missing;
}

std::string Orphans::DescribeHolders(const Holders& holders) {
  std::set<WorkerId> workers;
  for (const auto& [worker, holder] : holders) workers.insert(worker);
  const std::set<WorkerId> missing = Missing(holders);
  return absl::StrCat(
      workers.size() == 1 ? "worker " : "workers ", Quoted(workers),
      workers.size() == 1 ? " holds it, " : " hold it, ", "and the journal does not know it",
      missing.empty()
          ? ""
          : absl::StrCat("; it continues once ", missing.size() == 1 ? "worker " : "workers ",
                         Quoted(missing), missing.size() == 1 ? " is" : " are", " here too"));
}

}  // namespace tessera::coordinator
