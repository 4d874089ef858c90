// Clients that ask this worker directly for maps of a job's state, without the coordinator: only
// for jobs entirely on this worker, whose whole state it therefore knows.
//
//   Open(query) ──► the given regions, and the places in them; a place among those that may
//   CheckNew    ──► whether newer versions still come: this worker holds that very memory
//   ~DirectMap  ──► gives its place back
//
// A worker that lost its coordinator gives what it has, which is a committed step of that generation.
// Thread-safe.
#ifndef TESSERA_WORKER_KEEPER_DIRECT_MAPS_H_
#define TESSERA_WORKER_KEEPER_DIRECT_MAPS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "proto/live_map.pb.h"
#include "worker/keeper/hosted_job.h"

namespace tessera {

class DirectMaps;

// One client's. Keeps no memory of the job. Thread-compatible.
class DirectMap {
 public:
  ~DirectMap();
  DirectMap(const DirectMap&) = delete;
  DirectMap& operator=(const DirectMap&) = delete;

  // What is to be sent, which is not kept.
  v1::LiveMapAnswer TakeAnswer() { return std::exchange(answer_, {}); }
  std::vector<UniqueFd> TakeRegions() { return std::exchange(regions_, {}); }

  // Errors: Unavailable  the job was deleted, is over or lost, or has started again.
  absl::Status CheckNew() const;

 private:
  friend class DirectMaps;
  DirectMap(DirectMaps* maps, std::string job_id) : maps_(maps), job_id_(std::move(job_id)) {}

  DirectMaps* const maps_;
  const std::string job_id_;
  std::weak_ptr<HostedJob> job_;
  v1::LiveMapAnswer answer_;
  std::vector<UniqueFd> regions_;
};

class DirectMaps {
 public:
  static constexpr int kMaxMapsOfAJob = 8;  // Each has a thread.
  // Of a job with so many parameters and buffers, or fewer, it takes a millisecond or two to
  // answer.
  static constexpr int kQuickTensors = 1000;

  // Null where it is not held here.
  using FindJob = std::function<std::shared_ptr<HostedJob>(const std::string& job_id)>;
  explicit DirectMaps(FindJob find) : find_(std::move(find)) {}

  // `query` is untrusted. This outlives the map.
  // Errors: NotFound            no such job here, or no name of it matches
  //         InvalidArgument     as PlanLiveRead
  //         FailedPrecondition  other workers have ranks of it; as CheckLiesAsAskedFor and
  //                             PlaceState
  //         ResourceExhausted   as many map it as may; no descriptors
  absl::StatusOr<std::unique_ptr<DirectMap>> Open(const v1::LiveStateQuery& query);
  // Whether that takes almost no time, as a refusal does.
  bool IsQuick(const v1::LiveStateQuery& query) const;

 private:
  friend class DirectMap;
  absl::Status Enter(const std::string& job_id);
  void Leave(const std::string& job_id);

  const FindJob find_;
  absl::Mutex mu_;
  std::map<std::string, int> maps_ ABSL_GUARDED_BY(mu_);  // By job, of which there are any.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_DIRECT_MAPS_H_
