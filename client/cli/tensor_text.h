// Tensors of files as human-readable text, and which of them a pattern matches. Pure; thread-safe.
#ifndef TESSERA_CLIENT_CLI_TENSOR_TEXT_H_
#define TESSERA_CLIENT_CLI_TENSOR_TEXT_H_

#include <string>

#include "checkpoint/safetensors/diff_tensors.h"
#include "checkpoint/safetensors/stored_tensors.h"

namespace tessera::cli {

// Whether `pattern`, of the shell's kind, means the whole name: "*" any text, dots and slashes too,
// "?" one character, "[ab]" one of these. An empty one means every name.
bool MatchesPattern(const std::string& pattern, const std::string& name);

std::string DTypeText(const StoredEntry& entry);  // "F32"; "bytes" of what has no dtype.
std::string ShapeText(const StoredEntry& entry);  // "[256, 64]", "[]".

// How two differ: "F32 [3]" of one that is alone, "F32, BF16", "[3], [4]", or
// "in 2 of 3 elements, from 1 on, by up to 0.5".
std::string DifferenceText(const TensorDiff& diff);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_TENSOR_TEXT_H_
