#include "checkpoint/safetensors/model_index.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/relative_path.h"
#include "checkpoint/safetensors/strict_json.h"

namespace tessera {
namespace {

absl::Status Invalid(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("model index: ", why));
}

// The tensors of each shard, by their position.
std::vector<std::vector<size_t>> SplitGreedily(
    const std::vector<std::pair<std::string, int64_t>>& tensors, int64_t max_shard_bytes) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> open;
  int64_t open_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t size_bytes = tensors[i].second;
    // A tensor is never split, so one that is too large has a file of its own.
    if (size_bytes > max_shard_bytes) {
      shards.push_back({i});
      continue;
    }
    if (size_bytes > max_shard_bytes - open_bytes) {
      shards.push_back(std::move(open));
      open.clear();
      open_bytes = 0;
    }
    open.push_back(i);
    open_bytes += size_bytes;
  }
  if (!open.empty()) shards.push_back(std::move(open));
  return shards;
}

}  // namespace

absl::StatusOr<ModelIndex> DecodeModelIndex(absl::string_view json) {
  // Before it is parsed.
  if (json.size() > kMaxIndexBytes) return Invalid(absl::StrCat(json.size(), " bytes"));
  const absl::StatusOr<nlohmann::json> parsed = ParseStrictJsonObject(json);
  if (!parsed.ok()) return Invalid(parsed.status().message());
  const auto weight_map = parsed->find("weight_map");
  if (weight_map == parsed->end() || !weight_map->is_object()) return Invalid("no weight_map");
  if (weight_map->empty()) return Invalid("the weight_map has no tensor");
  ModelIndex index;
  for (const auto& [tensor, file] : weight_map->items()) {
    // File names are joined to the folder's path.
    if (!file.is_string() || !StaysInFolder(file.get_ref<const std::string&>())) {
      return Invalid(absl::StrCat("tensor '", tensor, "' is in ", file.dump(-1, ' ', true),
                                  ", which is not a file of the index's folder"));
    }
    index.file_of[tensor] = file.get<std::string>();
  }
  const auto metadata = parsed->find("metadata");
  if (metadata != parsed->end() && metadata->is_object() && metadata->contains("total_size")) {
    const nlohmann::json& total = (*metadata)["total_size"];
    // Other programs write other forms of it. Nothing here relies on it, so they are passed over.
    if (total.is_number_unsigned() && total.get<uint64_t>() <= INT64_MAX)
      index.total_size_bytes = total.get<int64_t>();
  }
  return index;
}

std::string EncodeModelIndex(const ModelIndex& index) {
  nlohmann::json json;
  json["metadata"] = nlohmann::json::object();
  if (index.total_size_bytes.has_value()) json["metadata"]["total_size"] = *index.total_size_bytes;
  json["weight_map"] = index.file_of;
  return json.dump(2) + "\n";
}

std::vector<std::string> FilesOf(const ModelIndex& index) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : index.file_of) files.insert(file);
  return {files.begin(), files.end()};
}

absl::Status CheckAgainstFiles(const ModelIndex& index,
                               const std::map<std::string, TensorTable>& files) {
  // Both ways: files and index must say the same, or readers would differ.
  for (const auto& [tensor, file] : index.file_of) {
    const auto table = files.find(file);
    if (table == files.end())
      return absl::NotFoundError(absl::StrCat("model index: file '", file, "' is not there"));
    if (table->second.count(tensor) == 0)
      return Invalid(absl::StrCat("tensor '", tensor, "' is not in '", file, "'"));
  }
  for (const auto& [file, tensors] : files) {
    for (const auto& [tensor, info] : tensors) {
      const auto said = index.file_of.find(tensor);
      if (said == index.file_of.end())
        return Invalid(absl::StrCat("tensor '", tensor, "' of '", file, "' is not in it"));
      if (said->second != file) {
        return Invalid(
            absl::StrCat("tensor '", tensor, "' is in '", said->second, "' and in '", file, "'"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ModelShard>> SplitIntoShards(
    const std::vector<std::pair<std::string, int64_t>>& tensors, int64_t max_shard_bytes) {
  if (max_shard_bytes < 1) return Invalid(absl::StrCat("files of ", max_shard_bytes, " bytes"));
  std::set<std::string> names;
  for (const auto& [name, size_bytes] : tensors) {
    // Negative sizes would break the split.
    if (size_bytes < 0 || !names.insert(name).second)
      return Invalid(absl::StrCat("tensor '", name, "' of ", size_bytes, " bytes, or twice"));
  }
  const std::vector<std::vector<size_t>> split = SplitGreedily(tensors, max_shard_bytes);
  std::vector<ModelShard> shards;
  for (size_t i = 0; i < split.size(); ++i) {
    ModelShard& shard = shards.emplace_back();
    shard.file = split.size() == 1
                     ? kSingleFileName
                     : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, split.size());
    for (const size_t tensor : split[i]) shard.tensors.push_back(tensors[tensor].first);
  }
  return shards;
}

}  // namespace tessera
