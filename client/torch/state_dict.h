// A model's state under its own names, in memory. Plain values; thread-compatible.
//
//   FULL      "1.weight"         the tensor, on every rank or on rank 0 alone
//   SHARDED   "1.weight"         rows [8, 16) of 16: what this rank has of each parameter
//   LOCAL     "1._flat_param"    elements [96, 184) of 184: what it has of each unit
//
// A rank's shard is a range of a unit's flat parameter and knows no rows. So rows are made for the
// user: each unit is read whole, one after the other, and cut as torch.chunk does along dimension
// 0 over the ranks that shard the unit: ceil(rows / ranks) each, fewer or none at the end. A
// parameter without dimensions has no rows, and is whole on every rank. The flat part is the shard
// itself without its padding: the parts of all ranks, concatenated, are the unit's parameters,
// concatenated. In the same way SHARDED's concatenation is the parameter; for another number of
// ranks, cut it again. Units that shard nothing (NO_SHARD, or one rank alone) are
// whole in SHARDED, and LOCAL is refused.
// Source: state dict types of torch/distributed/fsdp/api.py and _state_dict_utils.py.
#ifndef TESSERA_CLIENT_TORCH_STATE_DICT_H_
#define TESSERA_CLIENT_TORCH_STATE_DICT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/torch/libtorch.h"
#include "layout/shard_map.h"
#include "layout/unit_parts.h"

namespace tessera {

enum class StateDictType { kFull, kSharded, kLocal };

const char* Name(StateDictType type);  // "FULL_STATE_DICT", ...

struct StateEntry {
  enum class Kind { kWhole, kRows, kFlat };

  static StateEntry Whole(torch::Tensor tensor);

  torch::Tensor tensor;
  Kind kind = Kind::kWhole;
  // Of what `tensor` is a part; its own where it is whole.
  std::vector<int64_t> shape;
  int64_t begin = 0;  // Rows (kRows) or elements (kFlat) before it.
};

// In the order of the module tree: of each module its parameters, then its buffers.
using StateDict = torch::OrderedDict<std::string, StateEntry>;

// This chunk of a whole tensor of one or more dimensions; a copy.
StateEntry RowsEntry(const torch::Tensor& whole, int64_t num_chunks, int64_t chunk);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_STATE_DICT_H_
