// Jobs that workers hold and the journal does not know, or knows only in an older epoch: it was
// lost, restored from an older copy, or never had them. They are kept until all of a job's workers
// have described it, and it is taken over, or until somebody deletes it.
//
//   a heartbeat lists a job ── Hear: true ──► DescribeJob ──► HeldJob ──► Describe
//                           └─ Listed: what the worker no longer lists, it no longer holds
//
// What a worker says is heard, not decided: nothing here is durable. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_ORPHANS_H_
#define TESSERA_COORDINATOR_CORE_ORPHANS_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/events.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

class Orphans {
 public:
  explicit Orphans(size_t capacity) : capacity_(capacity) {}

  using Key = std::pair<JobId, Creation>;
  struct Holder {
    explicit Holder(const JobProgress& progress);
    // Than a state that has the job in this epoch, and has begun one or not.
    bool IsAheadOf(Epoch of_state, bool has_begun) const {
      return of_state < epoch || (of_state == epoch && is_in_its_epoch && !has_begun);
    }

    Epoch epoch;                   // As its heartbeats say.
    bool is_in_its_epoch = false;  // That has begun there.
    std::optional<HeldJob> described;
  };
  using Holders = std::map<WorkerId, Holder>;

  // The worker holds it. True: it is to describe it.
  bool Hear(const WorkerId& worker, const JobProgress& progress);
  // Of what nobody asked for, nothing is kept.
  void Describe(const WorkerId& worker, HeldJob held);
  // The worker holds nothing else.
  void Listed(const WorkerId& worker, const std::set<Key>& keys);
  void Forget(const WorkerId& worker) { Listed(worker, {}); }
  void Forget(const Key& key) { orphans_.erase(key); }
  void PutBack(const Key& key, const Holders& holders) { orphans_[key] = holders; }

  // Those who hold it; null: nobody does.
  const Holders* Find(const Key& key) const;
  // The newest creation of the job that somebody holds.
  std::optional<Key> Newest(const JobId& job) const;
  const std::map<Key, Holders>& all() const { return orphans_; }

  // Of those that are described, the one of the latest epoch, and of that the one of the latest
  // step that has begun; null: none is.
  static const HeldJob* Latest(const Holders& holders);
  // Of the job, where all who described it say the same; empty: its owner is not known.
  static std::string OwnerOf(const Holders& holders);
  // Those of its workers, and of those that may hold a later epoch of it, that have not described
  // it.
  static std::set<WorkerId> Missing(const Holders& holders);
  // "worker 'a' holds it ...": for a person.
  static std::string DescribeHolders(const Holders& holders);

 private:
  size_t capacity_;
  std::map<Key, Holders> orphans_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_ORPHANS_H_
