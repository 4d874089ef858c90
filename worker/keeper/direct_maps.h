// Clients that map the state of jobs of which this worker has ranks. Of a job of several workers a
// client asks each of them, and compares their answers.
//
//   Open(query) ──► the given regions, and the places in them; one of the job's places for clients
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

// Null where it is not held here.
using FindHeldJob = std::function<std::shared_ptr<HostedJob>(const std::string& job_id)>;

// One client's. Keeps no memory of the job. Thread-compatible.
class DirectMap {
 public:
  // `leave` is called at the end.
  DirectMap(std::string job_id, FindHeldJob find, std::function<void()> leave)
      : job_id_(std::move(job_id)), find_(std::move(find)), leave_(std::move(leave)) {}
  ~DirectMap() { leave_(); }
  DirectMap(const DirectMap&) = delete;
  DirectMap& operator=(const DirectMap&) = delete;

  // Prepares what the query requests of the job, of which this worker has ranks.
  // Errors: as DirectMaps::Open.
  absl::Status Prepare(const std::shared_ptr<HostedJob>& job, const v1::LiveStateQuery& query);
  // What is to be sent, which is not kept.
  v1::LiveMapAnswer TakeAnswer() { return std::exchange(answer_, {}); }
  std::vector<UniqueFd> TakeRegions() { return std::exchange(regions_, {}); }

  // Errors: Unavailable  the job was deleted, is over or lost, or has started again.
  absl::Status CheckNew() const;

 private:
  const std::string job_id_;
  const FindHeldJob find_;
  const std::function<void()> leave_;
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

  explicit DirectMaps(FindHeldJob find) : find_(std::move(find)) {}

  // `query` is untrusted. This outlives the map.
  // Errors: NotFound            no such job here, or no name of it matches
  //         InvalidArgument     as PlanLiveRead
  //         FailedPrecondition  as CheckLiesAsAskedFor and PlaceState
  //         ResourceExhausted   as many map it as may; no descriptors
  absl::StatusOr<std::unique_ptr<DirectMap>> Open(const v1::LiveStateQuery& query);
  // Whether that takes almost no time, as a refusal does.
  bool IsQuick(const v1::LiveStateQuery& query) const;

 private:
  absl::Status Enter(const std::string& job_id);
  void Leave(const std::string& job_id);

  const FindHeldJob find_;
  absl::Mutex mu_;
  std::map<std::string, int> maps_ ABSL_GUARDED_BY(mu_);  // By job, of which there are any.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_DIRECT_MAPS_H_
