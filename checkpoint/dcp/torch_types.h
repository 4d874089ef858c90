// PyTorch's names of dtypes, as its pickles have them. Pure functions; thread-safe.
#ifndef TESSERA_CHECKPOINT_DCP_TORCH_TYPES_H_
#define TESSERA_CHECKPOINT_DCP_TORCH_TYPES_H_

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "layout/stored_dtype.h"

namespace tessera::dcp {

// Of "torch float32".
std::optional<StoredDType> DTypeOfName(absl::string_view global);
// Of "torch FloatStorage", the class of a storage whose elements are of one dtype.
std::optional<StoredDType> DTypeOfStorage(absl::string_view global);

// All names that one of these knows.
std::vector<absl::string_view> DTypeNames();
std::vector<absl::string_view> StorageNames();

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_TORCH_TYPES_H_
