// Jobs that workers hold and the journal does not know, or knows only in an older epoch: the
// journal was lost, was restored from an older copy, or never had them. They are kept until all of
// a job's workers have described it and it is taken over, or until it is deleted.
//
//   a heartbeat lists a job ── Hear: true ──► DescribeJob ──► HeldJob ──► Describe
//                           └─ Listed: what the worker no longer lists, it no longer holds
//
// Nothing here is durable: it is only what workers report. Thread-compatible.
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

  using Key = std::pair<JobId, Generation>;
  struct Holder {
    explicit Holder(const JobProgress& progress);
    // Whether it is ahead of a state that has the job in this epoch.
    bool IsAheadOf(Epoch of_state, bool has_begun) const {
      return of_state < epoch || (of_state == epoch && is_in_its_epoch && !has_begun);
    }

    Epoch epoch;                   // As its heartbeats say.
    bool is_in_its_epoch = false;  // That epoch has begun there.
    std::optional<HeldJob> described;
  };
  using Holders = std::map<WorkerId, Holder>;

  // The worker holds the job. Returns whether the worker is to describe it.
  bool Hear(const WorkerId& worker, const JobProgress& progress);
  // Ignores a job or worker that Hear() does not know.
  void Describe(const WorkerId& worker, HeldJob held);
  // The worker holds these jobs and no others.
  void Listed(const WorkerId& worker, const std::set<Key>& keys);
  void Forget(const WorkerId& worker) { Listed(worker, {}); }
  void Forget(const Key& key) { orphans_.erase(key); }
  void PutBack(const Key& key, const Holders& holders) { orphans_[key] = holders; }

  // The workers that hold it; null: none.
  const Holders* Find(const Key& key) const;
  // The newest generation of the job that a worker holds.
  std::optional<Key> Newest(const JobId& job) const;
  const std::map<Key, Holders>& all() const { return orphans_; }

  // The description with the latest epoch; of these, one that has begun; of these, one with the
  // latest decided step. Null: no holder has described the job.
  static const HeldJob* Latest(const Holders& holders);
  // The owner of the job, if all descriptions agree; empty: not known.
  static std::string OwnerOf(const Holders& holders);
  // The workers that have ranks of the job, or may hold a later epoch of it, and have not described
  // it.
  static std::set<WorkerId> Missing(const Holders& holders);
  // "worker 'a' holds it ...", for display.
  static std::string DescribeHolders(const Holders& holders);

 private:
  size_t capacity_;
  std::map<Key, Holders> orphans_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_ORPHANS_H_
