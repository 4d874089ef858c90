#include "layout/strategy.h"

namespace tessera {

absl::string_view Name(Strategy strategy) {
  switch (strategy) {
    case Strategy::kFullShard:
      return "FULL_SHARD";
    case Strategy::kShardGradOp:
      return "SHARD_GRAD_OP";
    case Strategy::kNoShard:
      return "NO_SHARD";
    case Strategy::kHybridShard:
      return "HYBRID_SHARD";
    case Strategy::kHybridShardZero2:
      return "HYBRID_SHARD_ZERO2";
  }
  return "UNKNOWN";
}

}  // namespace tessera
