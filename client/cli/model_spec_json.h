// Reads a model spec from JSON, as `tessera layout` takes it:
//
//   {"units": [{"name": "blocks.0", "parameters": [
//       {"name": "wq", "shape": [64, 64], "dtype": "fp32", "requires_grad": true},
//       {"name": "wk", "shared_with": "wq"}]}],
//    "buffers": [{"name": "norm.mean", "shape": [64], "dtype": "F32"}]}
//
// `requires_grad` may be left out (true); so may an alias's shape, dtype and requires_grad, which
// are then its primary's; and `buffers`, whose dtypes are those of safetensors files. The document
// may hold other keys besides "units" and "buffers"; units, parameters and buffers may not, so that a
// misspelt key is an error.
#ifndef TESSERA_CLIENT_CLI_MODEL_SPEC_JSON_H_
#define TESSERA_CLIENT_CLI_MODEL_SPEC_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "layout/tensor_spec.h"

namespace tessera::cli {

// Errors: InvalidArgument  not JSON (says at which byte); a key that is missing, unknown or of the
//                          wrong type (names unit and parameter); what ValidateModel refuses.
absl::StatusOr<ModelSpec> ParseModelSpecJson(absl::string_view text);

// The same of a file, which the errors name.
// Errors: NotFound, PermissionDenied, ...  the file cannot be read
//         InvalidArgument                  larger than 256 MiB, or as above
absl::StatusOr<ModelSpec> ReadModelSpecFile(const std::string& path);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_MODEL_SPEC_JSON_H_
