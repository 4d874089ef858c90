// JSON of anybody's, read strictly: a key that is there twice, which parsers merge silently and
// each in its own way, is an error, and so is nesting that no format here has. Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_STRICT_JSON_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_STRICT_JSON_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

inline constexpr int kMaxJsonDepth = 100;

// Errors: InvalidArgument  no JSON object, or a byte order mark before it; nested deeper than
// kMaxJsonDepth; a key is there twice,
//                          by name.
absl::StatusOr<nlohmann::json> ParseStrictJsonObject(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_STRICT_JSON_H_
