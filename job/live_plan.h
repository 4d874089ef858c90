// What a query of a job's state asks for: which tensors, in which dtype. One reading of it for the
// coordinator and for a worker that is asked itself. Pure; thread-safe.
#ifndef TESSERA_JOB_LIVE_PLAN_H_
#define TESSERA_JOB_LIVE_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "job/live_tensors.h"
#include "layout/model_layout.h"
#include "proto/live_state.pb.h"

namespace tessera {

struct LivePlan {
  std::shared_ptr<const ModelLayout> layout;
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
  int64_t TotalBytes() const;  // Of all entries.
  // Of a parameter or moment, or of kLocal a unit: the first one's.
  const LiveTensor& FirstOf(size_t entry) const { return tensors[entries[entry]]; }
  v1::LiveTensorInfo InfoOf(size_t entry) const;
};

// `layout` is what LayOut makes of the job's model and `config`.
// Errors: InvalidArgument  the query is out of bounds, or asks for a dtype that a tensor cannot be
//                          rounded to, or a rank's part that there is not (names it)
//         NotFound         no name matches
absl::StatusOr<LivePlan> PlanLiveRead(const JobConfig& config,
                                      std::shared_ptr<const ModelLayout> layout,
                                      const v1::LiveStateQuery& query);
// Lays it out, too. Errors: as LayOut as well.
absl::StatusOr<LivePlan> PlanLiveRead(const ModelSpec& model, const JobConfig& config,
                                      const v1::LiveStateQuery& query);

// Whether the ranks' memory has the requested values in the requested form, so that they can be
// mapped without cutting or rounding. Errors: FailedPrecondition names why not.
absl::Status CheckLiesAsAskedFor(const LivePlan& plan);

// Adds which source gives which elements of each entry: `source_of_rank` says which source has the
// slices of each rank that has any. Requires all entries in `tensors`.
absl::Status AddExtents(const LivePlan& plan, const std::vector<int>& source_of_rank,
                        std::vector<v1::LiveTensorInfo>* tensors);
// What a client that maps is told: all entries, with that.
absl::StatusOr<std::vector<v1::LiveTensorInfo>> InfosWithExtents(
    const LivePlan& plan, const std::vector<int>& source_of_rank);

}  // namespace tessera

#endif  // TESSERA_JOB_LIVE_PLAN_H_
