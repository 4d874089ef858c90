// What clients of this node get that map a job's state: descriptors for reading, and where in them
// each slice of either version is. Nothing is held and nothing is copied: a reader validates its
// read against the words of each rank (worker/engine/state_hold.h). A holder of descriptors keeps
// the memory, also of a job that was deleted. Thread-safe.
#ifndef TESSERA_WORKER_KEEPER_STATE_MAP_H_
#define TESSERA_WORKER_KEEPER_STATE_MAP_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "proto/live_map.pb.h"
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

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_STATE_MAP_H_
