#include "layout/memory_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Sums are made in 128 bits and checked once, when they are written down.
using Bytes = absl::int128;

absl::Status ValidateOptions(const ModelLayout& layout, const MemoryOptions& options) {
  if (!IsFloatingPoint(options.shard_dtype) || !IsFloatingPoint(options.compute_dtype)) {
    return absl::InvalidArgumentError("shard and compute dtype must be floating-point types");
  }
  // Bounds that keep every sum within 128 bits.
  constexpr int64_t kMaxWorldSize = int64_t{1} << 24;
  constexpr int64_t kMaxOptimizerStates = 1024;
  if (layout.world_size < 1 || layout.world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", layout.world_size, " is not in [1, ", kMaxWorldSize, "]"));
  }
  if (options.optimizer_states < 0 || options.optimizer_states > kMaxOptimizerStates) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer_states ", options.optimizer_states, " is out of bounds"));
  }
  if (options.max_gathered_units < 0 || options.max_gathered_bytes < 0 ||
      options.gradient_slots < 0) {
    return absl::InvalidArgumentError(
        "max_gathered_units, max_gathered_bytes and gradient_slots must not be negative");
  }
  if (options.ranks_per_host < 0 || options.ranks_per_host > layout.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("ranks_per_host ", options.ranks_per_host,
                                                   " is not in [0, ", layout.world_size, "]"));
  }
  if (options.shard_group_size < 0 ||
      (options.shard_group_size > 0 && layout.world_size % options.shard_group_size != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("shard_group_size ", options.shard_group_size,
                                                   " does not divide ", layout.world_size));
  }
  return absl::OkStatus();
}

// A unit as a plan sees it.
struct PlannedUnit {
  Strategy strategy;
  Bytes shard_bytes;
  Bytes whole_bytes;      // In the shards' dtype.
  Bytes unsharded_bytes;  // In its compute dtype.
  Bytes copied_bytes;     // The same; 0 where the shards side by side are the unsharded unit.
  Bytes gathered_bytes;   // What unsharding it takes on a host.
};

// `strategies`: by unit.
absl::StatusOr<std::vector<PlannedUnit>> PlanUnits(const ModelLayout& layout,
                                                   const std::vector<Strategy>& strategies,
                                                   const MemoryOptions& options,
                                                   int64_t ranks_per_host) {
  std::vector<PlannedUnit> planned;
  for (size_t i = 0; i < layout.units.size(); ++i) {
    const UnitLayout& unit = layout.units[i];
    const int64_t num_shards =
        IsHybrid(strategies[i]) ? options.shard_group_size : layout.world_size;
    ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(unit.flat, num_shards));
    const DType compute_dtype = unit.compute_dtype.value_or(options.compute_dtype);
    PlannedUnit& plan = planned.emplace_back();
    plan.strategy = strategies[i];
    const DType shard_dtype =
        unit.full_dtype() == DType::kFp64 ? DType::kFp64 : options.shard_dtype;
    plan.shard_bytes = Bytes(shards.shard_numel()) * SizeBytes(shard_dtype);
    plan.whole_bytes = Bytes(shards.padded_numel()) * SizeBytes(shard_dtype);
    plan.unsharded_bytes = Bytes(shards.padded_numel()) * SizeBytes(compute_dtype);
    plan.copied_bytes = compute_dtype == shard_dtype ? Bytes(0) : plan.unsharded_bytes;
    plan.gathered_bytes = num_shards <= ranks_per_host ? plan.copied_bytes : plan.unsharded_bytes;
  }
  return planned;
}

Bytes SumOfLargest(std::vector<Bytes> bytes, int64_t count) {
  const auto kept = bytes.begin() + std::min<uint64_t>(bytes.size(), count);
  std::partial_sort(bytes.begin(), kept, bytes.end(), std::greater<Bytes>());
  return std::accumulate(bytes.begin(), kept, Bytes(0));
}

// Whether the unit is gathered separately for forward and for backward. The root is not.
bool ComesAndGoes(const std::vector<PlannedUnit>& units, int64_t unit) {
  return unit != 0 && ReshardsAfterForward(units[unit].strategy);
}

// What is gathered on a host while `unit` is in hand, of the units that come and go. `direction`:
// 1 in forward, -1 in backward. Units that stay count among those ahead too.
Bytes AliveWith(const std::vector<PlannedUnit>& units, int64_t unit, int direction,
                const MemoryOptions& options) {
  Bytes alive = ComesAndGoes(units, unit) ? units[unit].gathered_bytes : Bytes(0);
  Bytes ahead = 0;
  for (int64_t i = 1; i <= options.max_gathered_units; ++i) {
    const int64_t next = unit + direction * i;
    if (next < 1 || next >= static_cast<int64_t>(units.size())) break;
    ahead += units[next].unsharded_bytes;
    // The executor stops gathering ahead at the same unit.
    if (options.max_gathered_bytes > 0 && ahead > options.max_gathered_bytes) break;
    if (ComesAndGoes(units, next)) alive += units[next].gathered_bytes;
  }
  return alive;
}

Bytes MostAlive(const std::vector<PlannedUnit>& units, const MemoryOptions& options) {
  Bytes most = 0;
  for (size_t unit = 1; unit < units.size(); ++unit) {
    most = std::max(most, AliveWith(units, unit, 1, options));
    most = std::max(most, AliveWith(units, unit, -1, options));
  }
  return most;
}

// What a plan is made of, in wide integers.
struct Parts {
  Bytes shard_bytes = 0;           // Of one rank.
  Bytes unsharded_parameters = 0;  // Of one host.
  Bytes unsharded_gradients = 0;   // Of one rank.
};

Parts ComputeParts(const std::vector<PlannedUnit>& units, const MemoryOptions& options,
                   int64_t ranks_per_host) {
  Parts parts;
  std::vector<Bytes> gradients;  // Of units that share a bounded room.
  for (size_t i = 0; i < units.size(); ++i) {
    const PlannedUnit& unit = units[i];
    if (unit.strategy == Strategy::kNoShard) {
      // Everything is resident; only a low-precision copy comes on top.
      parts.shard_bytes += unit.whole_bytes;
      parts.unsharded_parameters += unit.copied_bytes * ranks_per_host;
      parts.unsharded_gradients += unit.copied_bytes;
      continue;
    }
    parts.shard_bytes += unit.shard_bytes;
    if (!ComesAndGoes(units, i)) parts.unsharded_parameters += unit.gathered_bytes;
    if (i == 0 || options.gradient_slots == 0) {
      parts.unsharded_gradients += unit.unsharded_bytes;
    } else {
      gradients.push_back(unit.unsharded_bytes);
    }
  }
  parts.unsharded_parameters += MostAlive(units, options);
  parts.unsharded_gradients += SumOfLargest(gradients, options.gradient_slots);
  return parts;
}

absl::Status Narrow(Bytes wide, int64_t* narrow) {
  if (wide > std::numeric_limits<int64_t>::max()) {
    return absl::InvalidArgumentError("the model's memory in bytes overflows int64");
  }
  *narrow = static_cast<int64_t>(wide);
  return absl::OkStatus();
}

absl::StatusOr<MemoryPlan> PlanStrategies(const ModelLayout& layout,
                                          const std::vector<Strategy>& strategies,
                                          const MemoryOptions& options) {
  RETURN_IF_ERROR(ValidateOptions(layout, options));
  const bool any_hybrid = std::any_of(strategies.begin(), strategies.end(), IsHybrid);
  if (any_hybrid && options.shard_group_size == 0) {
    return absl::InvalidArgumentError("a hybrid strategy without shard_group_size");
  }
  int64_t ranks = options.ranks_per_host;
  if (ranks == 0) ranks = any_hybrid ? options.shard_group_size : layout.world_size;
  ASSIGN_OR_RETURN(const std::vector<PlannedUnit> units,
                   PlanUnits(layout, strategies, options, ranks));
  const Parts parts = ComputeParts(units, options, ranks);
  const Bytes shard = parts.shard_bytes;
  const Bytes optimizer = shard * options.optimizer_states;
  // Rounded up: a rank's part of what its host shares.
  const Bytes shared_part = (parts.unsharded_parameters + ranks - 1) / ranks;
  // Twice: of the parameters and of the reduced gradients.
  const Bytes resident = shard * 2 + optimizer;
  MemoryPlan plan;
  RETURN_IF_ERROR(Narrow(shard, &plan.parameter_bytes));
  RETURN_IF_ERROR(Narrow(shard, &plan.gradient_bytes));
  RETURN_IF_ERROR(Narrow(optimizer, &plan.optimizer_bytes));
  RETURN_IF_ERROR(Narrow(parts.unsharded_gradients, &plan.unsharded_gradient_bytes));
  RETURN_IF_ERROR(Narrow(parts.unsharded_parameters, &plan.unsharded_parameter_bytes));
  RETURN_IF_ERROR(Narrow(parts.unsharded_gradients + shared_part, &plan.unsharded_peak_bytes));
  RETURN_IF_ERROR(
      Narrow(resident + parts.unsharded_gradients + shared_part, &plan.rank_total_bytes));
  RETURN_IF_ERROR(
      Narrow((resident + parts.unsharded_gradients) * ranks + parts.unsharded_parameters,
             &plan.host_total_bytes));
  return plan;
}

}  // namespace

std::vector<Strategy> PlannedStrategies(const MemoryOptions& options) {
  std::vector<Strategy> strategies = {Strategy::kFullShard, Strategy::kShardGradOp,
                                      Strategy::kNoShard};
  if (options.shard_group_size > 0) {
    strategies.push_back(Strategy::kHybridShard);
    strategies.push_back(Strategy::kHybridShardZero2);
  }
  return strategies;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelLayout& layout, const MemoryOptions& options) {
  std::vector<Strategy> strategies;
  for (const UnitLayout& unit : layout.units) strategies.push_back(unit.strategy);
  return PlanStrategies(layout, strategies, options);
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelLayout& layout, Strategy strategy,
                                      const MemoryOptions& options) {
  return PlanStrategies(layout, std::vector<Strategy>(layout.units.size(), strategy), options);
}

}  // namespace tessera
