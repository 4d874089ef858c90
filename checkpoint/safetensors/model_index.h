// The index of a model that is stored in several safetensors files. Pure; no I/O.
//
//   { "metadata": {"total_size": 32},                       model.safetensors.index.json
//     "weight_map": { "a.weight": "model-00001-of-00002.safetensors",
//                     "b.weight": "model-00002-of-00002.safetensors" } }
//
// Files are named relative to the index's folder. The tensors' places are in the files' headers.
// Source: huggingface_hub serialization/_base.py (names, order, the greedy split).
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_MODEL_INDEX_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_MODEL_INDEX_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/safetensors/tensor_table.h"

namespace tessera {

inline constexpr char kSingleFileName[] = "model.safetensors";
inline constexpr char kModelIndexName[] = "model.safetensors.index.json";
inline constexpr int64_t kMaxIndexBytes = 100'000'000;
// That of huggingface_hub.
inline constexpr int64_t kDefaultMaxShardBytes = 5'000'000'000;

struct ModelIndex {
  std::map<std::string, std::string> file_of;  // By tensor.
  // The bytes of all tensors. Writers count it differently, so it is told, and nothing goes by it.
  std::optional<int64_t> total_size_bytes;
};

// Errors: InvalidArgument  larger than kMaxIndexBytes; no JSON object; a key that is there twice;
//   no weight_map, or one without a tensor; a file that is named by no string, by an absolute path
//   or by one that could leave the folder. The message names the tensor.
absl::StatusOr<ModelIndex> DecodeModelIndex(absl::string_view json);
// Indented by 2, keys sorted, with a newline at the end.
std::string EncodeModelIndex(const ModelIndex& index);

// The files that the index names, each once, sorted.
std::vector<std::string> FilesOf(const ModelIndex& index);

// `files`: what each file that the index names holds.
// Errors: InvalidArgument  naming tensor and file: a tensor is not in the file that the index says,
//   is in another one too, or is in a file but not in the index; NotFound  a file is not in
//   `files`.
absl::Status CheckAgainstFiles(const ModelIndex& index,
                               const std::map<std::string, TensorTable>& files);

struct ModelShard {
  std::string file;
  std::vector<std::string> tensors;
};

// Puts tensors (name, bytes), in their order, into one file after the other, none of more bytes
// than `max_shard_bytes` but for a tensor that is larger itself, which gets one of its own. One
// file is called kSingleFileName and needs no index.
// Errors: InvalidArgument  a limit below 1, a negative size, a name that is there twice.
absl::StatusOr<std::vector<ModelShard>> SplitIntoShards(
    const std::vector<std::pair<std::string, int64_t>>& tensors, int64_t max_shard_bytes);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_MODEL_INDEX_H_
