// What a query of a job's state asks for: which tensors, in which dtype. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PLAN_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PLAN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/types.h"
#include "job/live_tensors.h"
#include "layout/model_layout.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

struct LivePlan {
  ModelLayout layout;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::vector<int> parameters;  // Numbers in the job, rising.
  std::vector<int> buffers;     // The same, among the buffers.
  bool moments = false;
  LivePartOf part;
  std::vector<LiveTensor> tensors;
  std::vector<StoredDType> dtypes;                          // By tensor: what it is served in.
  std::map<std::string, std::vector<std::string>> aliases;  // By parameter with tied weights.
  std::map<std::string, int> param_groups;  // By parameter; else it is in the first.
  // What the client sees as tensors: where each begins in `tensors`, and where the last one ends.
  // Of the form kLocal an entry is what a unit's tensors of one array are together.
  std::vector<size_t> entries;

  size_t num_entries() const { return entries.size() - 1; }
  size_t EntryOf(size_t tensor) const;
  int64_t ElementBytesOf(size_t tensor) const { return SizeBits(dtypes[tensor]) / 8; }
  int64_t SizeBytesOf(size_t entry) const;
  // Of a parameter or moment, or of kLocal a unit: the first one's.
  const LiveTensor& FirstOf(size_t entry) const { return tensors[entries[entry]]; }
  v1::LiveTensorInfo InfoOf(size_t entry) const;
};

// Errors: InvalidArgument  the query is out of bounds, or asks for a dtype that a tensor cannot be
//                          rounded to, or a rank's part that there is not (names it)
//         NotFound         no name matches
absl::StatusOr<LivePlan> PlanLiveRead(const JobSpec& spec, const v1::LiveStateQuery& query);

// Adds who gives which elements of each entry: `source_of_rank` says which source has the slices of
// each rank that has any. Requires all entries in `tensors`.
absl::Status AddExtents(const LivePlan& plan, const std::vector<int>& source_of_rank,
                        std::vector<v1::LiveTensorInfo>* tensors);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_PLAN_H_
