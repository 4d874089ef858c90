// How many bytes each rank and each host needs for a model, before anything is allocated: what the
// strategies take by themselves, with one version of everything. A worker that keeps two, so that a
// step is atomic, maps more: see job/job_memory.h.
//
//   resident   parameters + gradients + optimizer state, of the rank's shards (NO_SHARD: of all;
//              hybrid: a group has all of them)
//   unsharded  what units alive at once take while they are unsharded, at most: the root, a unit in
//              hand, and those after it, forward or backward, that are gathered ahead of it
//
// The ranks of one host share unsharded parameters. Where all ranks are on one host and compute in
// the shards' dtype, the shards side by side are the unsharded parameters: they exist once a host
// and unsharding takes no memory. Padding counts, as it is allocated. All quantities are BYTES.
// Pure values; thread-compatible.
#ifndef TESSERA_LAYOUT_MEMORY_PLAN_H_
#define TESSERA_LAYOUT_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/dtype.h"
#include "layout/model_layout.h"
#include "layout/strategy.h"

namespace tessera {

struct MemoryOptions {
  // Of parameters, reduced gradients, optimizer state; those of fp64 parameters are fp64.
  DType shard_dtype = DType::kFp32;
  // Of unsharded parameters and unsharded gradients of units that name no dtype of their own.
  DType compute_dtype = DType::kFp32;
  int64_t optimizer_states = 2;  // Values a parameter element: AdamW 2, momentum 1, SGD 0.
  // Gathered ahead of the unit in hand, under FULL_SHARD, where gathering copies.
  int64_t max_gathered_units = 2;
  int64_t max_gathered_bytes = 0;  // The same, of unsharded parameters together; 0: no bound.
  int64_t gradient_slots = 2;      // Unsharded gradients besides the root's; 0: of every unit.
  int64_t ranks_per_host = 0;    // 0: all ranks are on one host; of a hybrid strategy, a group is.
  int64_t shard_group_size = 0;  // Of the hybrid strategies; divides the world size.
};

struct MemoryPlan {
  // Of one rank.
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t unsharded_gradient_bytes = 0;
  // Of one host, shared by its ranks. Under NO_SHARD of all its ranks together.
  int64_t unsharded_parameter_bytes = 0;
  // Of one rank, with its part of what the host shares, rounded up.
  int64_t unsharded_peak_bytes = 0;
  int64_t rank_total_bytes = 0;  // Parameters, gradients, optimizer state, unsharded peak.
  int64_t host_total_bytes = 0;  // All ranks of a full host.
};

// The strategies that a table of plans shows: the hybrid ones where there is a group size.
std::vector<Strategy> PlannedStrategies(const MemoryOptions& options);

// Of each unit's own strategy.
// Errors: InvalidArgument  a count in `options` that is negative or absurd; ranks_per_host greater
//                          than the world size, or that above 2^24; a hybrid strategy without a
//                          group size; an integer dtype; a sum of bytes that overflows int64.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelLayout& layout, const MemoryOptions& options);
// As if all units had `strategy`.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelLayout& layout, Strategy strategy,
                                      const MemoryOptions& options);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_MEMORY_PLAN_H_
