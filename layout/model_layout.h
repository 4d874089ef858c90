// The layout of a whole job: every unit's FlatLayout and ShardMap. Computed by the coordinator once
// and by every rank again; equal inputs give equal layouts. Immutable value; thread-compatible.
#ifndef TESSERA_LAYOUT_MODEL_LAYOUT_H_
#define TESSERA_LAYOUT_MODEL_LAYOUT_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/flat_layout.h"
#include "layout/shard_map.h"
#include "layout/strategy.h"
#include "layout/tensor_spec.h"

namespace tessera {

struct UnitLayout {
  FlatLayout flat;
  ShardMap shards;
  // Instead of the job's, where given.
  std::optional<DType> compute_dtype = std::nullopt;
  std::optional<DType> reduce_dtype = std::nullopt;
  Strategy strategy = Strategy::kFullShard;

  // Of the shards, the reduced gradients and the optimizer's state: full precision.
  DType full_dtype() const { return FullDType(flat.dtype()); }
};

// Over which ranks.
struct Sharding {
  int64_t world_size = 1;
  Strategy strategy = Strategy::kFullShard;  // Of units that name none.
  int64_t group_size = 0;                    // Of the hybrid strategies; divides world_size.
};

struct ModelLayout {
  std::vector<UnitLayout> units;  // Indexed by UnitId; unit 0 is the root.
  int64_t world_size = 1;
  std::vector<BufferSpec> buffers = {};  // As the model has them: no rank has a part of one.

  // options.alignment_dtype is that of the units that name no compute dtype of their own.
  // Errors: InvalidArgument  as ValidateModel, FlatLayout::Create and ShardMap::Create; a hybrid
  //                          unit without a group size that divides the world size.
  static absl::StatusOr<ModelLayout> Create(const ModelSpec& model, const LayoutOptions& options,
                                            const Sharding& sharding);
  // With nothing hybrid.
  static absl::StatusOr<ModelLayout> Create(const ModelSpec& model, const LayoutOptions& options,
                                            int64_t world_size);
};

}  // namespace tessera

#endif  // TESSERA_LAYOUT_MODEL_LAYOUT_H_
