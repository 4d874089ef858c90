// Gives a job's state to clients of this host that map it: descriptors for reading, and where in
// them each slice of either version is. Nothing is held and nothing is copied: a reader validates its
// read against the words of each rank (worker/engine/state_hold.h).
//
//   MapGrants   session ──► what is asked for of which job      until the session ends
//   Give        the job's regions, as they are at that moment   each time
//
// A holder of descriptors keeps the memory, also of a job that was deleted. Thread-safe.
#ifndef TESSERA_WORKER_KEEPER_STATE_MAP_H_
#define TESSERA_WORKER_KEEPER_STATE_MAP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "proto/live_map.pb.h"
#include "worker/keeper/hosted_job.h"
#include "worker/keeper/job_regions.h"

namespace tessera {

struct MapRequest {
  std::vector<int> parameters;  // Their numbers in the job, rising.
  bool moments = false;
  std::vector<int> buffers;  // The same of buffers.
};

// Whether it can be given. Errors:
//   FailedPrecondition  the job has no values yet; its state is not in host memory
//   InvalidArgument     no such parameters or buffers
absl::Status CheckMappable(const JobRegions& regions, const MapRequest& request);

// Where all of it is, and the regions that it is in, the group's first. Errors: as CheckMappable;
// ResourceExhausted  no descriptors; FailedPrecondition  more ranks than a packet can have.
struct PlacedState {
  v1::LiveMapGiven places;
  std::vector<UniqueFd> regions;
};
absl::StatusOr<PlacedState> PlaceState(const JobRegions& regions, const MapRequest& request);
// The same as a packet has it: first a file with the places; then the regions.
absl::StatusOr<std::vector<UniqueFd>> GiveState(const JobRegions& regions,
                                                const MapRequest& request);

class MapGrants {
 public:
  // Of this generation of the job. Errors: Unavailable  it is not held here.
  using FindJob = std::function<absl::StatusOr<std::shared_ptr<HostedJob>>(
      const std::string& job_id, int64_t generation)>;
  explicit MapGrants(FindJob find) : find_(std::move(find)) {}

  // Errors: as CheckMappable and FindJob; AlreadyExists  there is such a session.
  absl::Status Add(const std::string& session, const std::string& job_id, int64_t generation,
                   const MapRequest& request);
  void Remove(const std::string& session);
  // Errors: NotFound  no such session; Unavailable  the job has other memory than at Add, or none;
  // as GiveState.
  absl::StatusOr<std::vector<UniqueFd>> Give(absl::string_view session) const;

 private:
  struct Grant {
    std::string job_id;
    int64_t generation = 0;
    std::weak_ptr<HostedJob> job;  // Of another one of this generation nothing may be given.
    MapRequest request;
  };
  const FindJob find_;
  mutable absl::Mutex mu_;
  std::map<std::string, Grant, std::less<>> grants_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_STATE_MAP_H_
