// How a unit's parameters, gradients and optimizer state are spread over ranks, and for how long
// its parameters are whole. Plain values.
//
//                        cut over      whole after forward
//   FULL_SHARD           all ranks     no (the root: yes)
//   SHARD_GRAD_OP        all ranks     until its backward is over
//   NO_SHARD             (all ranks)   always
//   HYBRID_SHARD         a group       no (the root: yes)
//   HYBRID_SHARD_ZERO2   a group       until its backward is over
//
// A group is the ranks of one host; each group has the whole model, and gradients are summed within
// it first and then over the groups.
// Source: Strategy of torch/distributed/fsdp/api.py.
#ifndef TESSERA_LAYOUT_STRATEGY_H_
#define TESSERA_LAYOUT_STRATEGY_H_

#include "absl/strings/string_view.h"

namespace tessera {

enum class Strategy {
  kFullShard,
  kShardGradOp,
  kNoShard,
  kHybridShard,
  kHybridShardZero2,
};

absl::string_view Name(Strategy strategy);  // "FULL_SHARD", ...

constexpr bool IsHybrid(Strategy strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridShardZero2;
}

// Of a unit that is not the root.
constexpr bool ReshardsAfterForward(Strategy strategy) {
  return strategy == Strategy::kFullShard || strategy == Strategy::kHybridShard;
}

constexpr bool ReshardsAfterBackward(Strategy strategy) { return strategy != Strategy::kNoShard; }

}  // namespace tessera

#endif  // TESSERA_LAYOUT_STRATEGY_H_
