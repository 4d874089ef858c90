// The newest events of the cluster, numbered from 1 in the order in which they were added.
//
//   bounds   kMaxEvents and kMaxBytes of all events; the oldest go first
//            kMaxEventsOfSource of one job or worker; its own oldest go first
//            kMaxTextBytes of one text, cut between characters
//
// So a worker or job that fails again and again displaces its own events, not those of others. How
// fast it can do that is bounded by what causes the events: each is a change that was journalled, or
// a finding of RankWatch, which names a few ranks of a job at a time.
//
// Pure: time is an argument. Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_EVENT_LOG_H_
#define TESSERA_COORDINATOR_CORE_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "coordinator/core/cluster_event.h"

namespace tessera::coordinator {

class EventLog {
 public:
  static constexpr size_t kMaxEvents = 10'000;
  static constexpr size_t kMaxEventsOfSource = 500;
  static constexpr size_t kMaxBytes = size_t{8} << 20;
  static constexpr size_t kMaxTextBytes = 2048;

  // Sets the event's number and time, and makes its text printable.
  void Add(ClusterEvent event, absl::Time time);

  struct Page {
    std::vector<ClusterEvent> events;  // Oldest first.
    int64_t first_number = 0;          // Of all that are kept; 0: none is.
    int64_t last_number = 0;
  };
  // The first events after `number` that `wanted` accepts: at most `max_events`, and no more once
  // their texts are `max_bytes` together.
  Page After(int64_t number, size_t max_events, size_t max_bytes,
             absl::FunctionRef<bool(const ClusterEvent&)> wanted) const;

  // How many were added of each kind, also of those that are not kept any more.
  const std::map<EventKind, int64_t>& counts() const { return counts_; }

 private:
  void Drop(int64_t number);

  std::map<int64_t, ClusterEvent> events_;
  std::map<std::string, std::deque<int64_t>> sources_;  // Numbers, by job or worker.
  std::map<EventKind, int64_t> counts_;
  int64_t last_number_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_EVENT_LOG_H_
