#include <utility>

#include "layout/unit_parts.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {

const char* Name(StateDictType type) {
  switch (type) {
    case StateDictType::kFull:
      return "FULL_STATE_DICT";
    case StateDictType::kSharded:
      return "SHARDED_STATE_DICT";
    case StateDictType::kLocal:
      return "LOCAL_STATE_DICT";
  }
  return "";
}

StateEntry StateEntry::Whole(torch::Tensor tensor) {
  StateEntry entry;
  entry.shape = tensor.sizes().vec();
  entry.tensor = std::move(tensor);
  return entry;
}

StateEntry RowsEntry(const torch::Tensor& whole, int64_t num_chunks, int64_t chunk) {
  const ElementRange rows = RowsOf(whole.size(0), num_chunks, chunk);
  StateEntry entry;
  // A copy, so that the whole tensor can be freed.
  entry.tensor = whole.narrow(0, rows.begin, rows.size()).clone();
  entry.kind = StateEntry::Kind::kRows;
  entry.shape = whole.sizes().vec();
  entry.begin = rows.begin;
  return entry;
}

}  // namespace tessera
