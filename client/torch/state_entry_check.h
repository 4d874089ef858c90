// Whether an entry of a state dict is what a rank's part of a model can be set from. Pure.
#ifndef TESSERA_CLIENT_TORCH_STATE_ENTRY_CHECK_H_
#define TESSERA_CLIENT_TORCH_STATE_ENTRY_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "layout/shard_map.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {

// What an entry must be.
struct ExpectedEntry {
  StateEntry::Kind kind = StateEntry::Kind::kWhole;
  std::vector<int64_t> shape;  // Of the whole.
  ElementRange part;           // Rows or elements; of a whole one nothing.
};

// Errors: InvalidArgument  naming the key: no values; another kind, shape or part.
absl::Status CheckStateEntry(const std::string& key, const StateEntry& entry,
                             const ExpectedEntry& expected);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_STATE_ENTRY_CHECK_H_
