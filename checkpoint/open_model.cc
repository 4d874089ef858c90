#include "checkpoint/open_model.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/indexed_model.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/model_reader.h"
#include "checkpoint/storage/storage_of.h"
#include "checkpoint/storage/storage_path.h"

namespace tessera {
namespace {

// Of a folder that PyTorch's Distributed Checkpoint wrote: a pickle.
constexpr char kDcpMetadataName[] = ".metadata";

template <typename Source>
absl::StatusOr<std::unique_ptr<ModelSource>> Open(const std::string& path) {
  ASSIGN_OR_RETURN(Source source, Source::Open(path));
  return std::make_unique<Source>(std::move(source));
}

absl::StatusOr<std::unique_ptr<ModelSource>> OpenFolder(Storage* storage,
                                                        const std::string& folder) {
  const std::string names[] = {kModelIndexName, kSingleFileName, kDcpMetadataName};
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const auto there = storage->Look(absl::StrCat(folder, "/", name));
    // An error counts as absence here: opening what was found reports its own.
    if (there.ok() && there->has_value()) found.push_back(name);
  }
  if (found.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " holds no model: neither ",
                                                   kModelIndexName, " nor ", kSingleFileName));
  }
  // Which one is meant cannot be guessed: readers of other programs would differ.
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " holds more than one model: ", absl::StrJoin(found, ", "), "; name one of them"));
  }
  if (found[0] == kDcpMetadataName) {
    return absl::UnimplementedError(absl::StrCat(
        folder, " is of PyTorch's Distributed Checkpoint: load it in Python by ",
        "tessera.load_model, from a file system, or convert it to safetensors by PyTorch's ",
        "dcp_to_torch_save and safetensors' save_file (docs/formats/stored_models.md)"));
  }
  const std::string path = absl::StrCat(folder, "/", found[0]);
  return found[0] == kModelIndexName ? Open<IndexedModel>(path) : Open<ModelReader>(path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  if (!IsAbsolutePath(path))
    return absl::InvalidArgumentError(absl::StrCat("model '", path, "' is not an absolute path"));
  ASSIGN_OR_RETURN(const std::optional<EntryInfo> there, storage->Look(path));
  if (!there.has_value())
    return absl::NotFoundError(absl::StrCat("open ", path, ": No such file or directory"));
  if (there->kind == EntryInfo::Kind::kFolder) return OpenFolder(storage, path);
  if (absl::EndsWith(path, ".json")) return Open<IndexedModel>(path);
  return Open<ModelReader>(path);
}

}  // namespace tessera
