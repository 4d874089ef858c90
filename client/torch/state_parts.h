// Which part of a unit's state this rank has in a state dict of each type. Pure; thread-compatible.
#ifndef TESSERA_CLIENT_TORCH_STATE_PARTS_H_
#define TESSERA_CLIENT_TORCH_STATE_PARTS_H_

#include <cstdint>
#include <vector>

#include "client/torch/state_entry_check.h"
#include "layout/model_layout.h"
#include "layout/shard_view.h"
#include "layout/unit_parts.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {

// What this rank's shard has of the unit's parameters. Of replicas the same.
ShardView ViewOf(const Session& session, int unit);

// Of FULL and SHARDED: this rank's part of something that has a parameter's shape.
StateEntry PartOf(const Session& session, int unit, const torch::Tensor& whole, StateDictType type);

// Of LOCAL: this rank's elements, without padding, of something that the unit's parameters have:
// `wholes`, of one dtype, in the order of the unit's layout.
StateEntry FlatPartOf(const Session& session, int unit, const std::vector<torch::Tensor>& wholes);

// What this rank's entry for a parameter, or of LOCAL for its unit, must be.
ExpectedEntry ExpectedOf(const Session& session, int unit, int parameter, StateDictType type);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_STATE_PARTS_H_
