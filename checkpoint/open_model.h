// Opens a model of whatever form (model_source.h), by its path alone:
//
//   a folder with model.safetensors.index.json or model.safetensors
//   a file whose name ends in ".json"                an index
//   any other file                                   a safetensors file
#ifndef TESSERA_CHECKPOINT_OPEN_MODEL_H_
#define TESSERA_CHECKPOINT_OPEN_MODEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/model_source.h"

namespace tessera {

// Errors: InvalidArgument  `path` is not absolute; a folder that holds no model, or more than one,
//         which are named; what the form's own Open refuses. NotFound; PermissionDenied.
//         Unimplemented  a folder of PyTorch's Distributed Checkpoint. They name the path.
absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_OPEN_MODEL_H_
