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
  if (options.max_gathered_units < 0 || options.gradient_slots < 0) {
    return absl::InvalidArgumentError("max_gathered_units and gradient_slots must not be negative");
  }
  if (options.ranks_per_host < 0 || options.ranks_per_host > layout.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("ranks_per_host ", options.ranks_per_host,
                                                   " is not in [0, ", layout.world_size, "]"));
  }
  return absl::OkStatus();
}

Bytes SumOfShards(const ModelLayout& layout) {
  Bytes sum = 0;
  for (const UnitLayout& unit : layout.units) sum += unit.shards.shard_numel();
  return sum;
}

// Of each unit: its unsharded elements, in its compute dtype.
std::vector<Bytes> UnshardedBytes(const ModelLayout& layout, const MemoryOptions& options) {
  std::vector<Bytes> bytes;
  for (const UnitLayout& unit : layout.units) {
    bytes.push_back(Bytes(unit.shards.padded_numel()) *
                    SizeBytes(unit.compute_dtype.value_or(options.compute_dtype)));
  }
  return bytes;
}

// The same, but nothing where the shards side by side are the unsharded parameters.
std::vector<Bytes> CopiedBytes(const ModelLayout& layout, const MemoryOptions& options) {
  std::vector<Bytes> bytes = UnshardedBytes(layout, options);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (layout.units[i].compute_dtype.value_or(options.compute_dtype) == options.shard_dtype) {
      bytes[i] = 0;
    }
  }
  return bytes;
}

Bytes Sum(const std::vector<Bytes>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), Bytes(0));
}

// Of the root and of the `slots` largest other units.
Bytes LargestAlive(std::vector<Bytes> bytes, int64_t slots) {
  if (bytes.empty()) return 0;
  const size_t kept = std::min<uint64_t>(bytes.size() - 1, slots);
  const auto others = bytes.begin() + 1;
  std::partial_sort(others, others + kept, bytes.end(), std::greater<Bytes>());
  return std::accumulate(bytes.begin(), others + kept, Bytes(0));
}

// What a plan is made of, in wide integers.
struct Parts {
  Bytes resident_elements;     // Of one rank.
  Bytes unsharded_parameters;  // Of one host.
  Bytes unsharded_gradients;   // Of one rank.
};

Parts ComputeParts(const ModelLayout& layout, ShardingStrategy strategy,
                   const MemoryOptions& options, int64_t ranks_per_host) {
  const std::vector<Bytes> unsharded = UnshardedBytes(layout, options);
  const std::vector<Bytes> copied = CopiedBytes(layout, options);
  if (strategy == ShardingStrategy::kNoShard) {
    // Everything is resident; only a low-precision copy comes on top.
    const Bytes copy = Sum(copied);
    return {SumOfShards(layout) * layout.world_size, copy * ranks_per_host, copy};
  }
  const bool one_host = ranks_per_host == layout.world_size;
  const std::vector<Bytes>& gathered = one_host ? copied : unsharded;
  return {SumOfShards(layout),
          strategy == ShardingStrategy::kFullShard
              ? LargestAlive(gathered, options.max_gathered_units)
              : Sum(gathered),
          options.gradient_slots == 0 ? Sum(unsharded)
                                      : LargestAlive(unsharded, options.gradient_slots)};
}

absl::Status Narrow(Bytes wide, int64_t* narrow) {
  if (wide > std::numeric_limits<int64_t>::max()) {
    return absl::InvalidArgumentError("the model's memory in bytes overflows int64");
  }
  *narrow = static_cast<int64_t>(wide);
  return absl::OkStatus();
}

}  // namespace

absl::string_view Name(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::kFullShard:
      return "FULL_SHARD";
    case ShardingStrategy::kShardGradOp:
      return "SHARD_GRAD_OP";
    case ShardingStrategy::kNoShard:
      return "NO_SHARD";
  }
  return "UNKNOWN";
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelLayout& layout, ShardingStrategy strategy,
                                      const MemoryOptions& options) {
  RETURN_IF_ERROR(ValidateOptions(layout, options));
  const int64_t ranks = options.ranks_per_host == 0 ? layout.world_size : options.ranks_per_host;
  const Parts parts = ComputeParts(layout, strategy, options, ranks);
  const Bytes shard = parts.resident_elements * SizeBytes(options.shard_dtype);
  const Bytes optimizer = shard * options.optimizer_states;
  const Bytes shared_part = (parts.unsharded_parameters + ranks - 1) / ranks;
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

}  // namespace tessera
