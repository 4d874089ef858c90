#include "checkpoint/safetensors/stored_tensors.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/open_model.h"
#include "checkpoint/safetensors/checked_files.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/element_reader.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "checkpoint/storage/storage_of.h"
#include "checkpoint/storage/storage_path.h"

namespace tessera {
namespace {

constexpr char kModelPart[] = "model";

absl::StatusOr<StoredEntry> EntryOf(const std::string& name, const TensorInfo& info) {
  StoredEntry entry;
  entry.dtype = info.dtype;
  entry.shape = info.shape;
  ASSIGN_OR_RETURN(entry.numel, NumelOf(info));
  const std::optional<int64_t> size_bytes = SizeBytes(info.dtype, entry.numel);
  if (!size_bytes.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "': ", entry.numel, " of ", Name(info.dtype)));
  }
  entry.size_bytes = *size_bytes;
  return entry;
}

class StoredModel final : public StoredTensors {
 public:
  static absl::StatusOr<std::unique_ptr<StoredTensors>> Open(const std::string& path) {
    auto model = std::make_unique<StoredModel>();
    ASSIGN_OR_RETURN(model->source_, OpenModel(path));
    for (const auto& [name, info] : model->source_->tensors()) {
      ASSIGN_OR_RETURN((model->entries_[{kModelPart, name}]), EntryOf(name, info));
    }
    return model;
  }

  absl::Status Read(const StoredKey& key, int64_t begin_elements, int64_t count,
                    char* into) const override {
    return source_->ReadStored(key.second, begin_elements, count, into);
  }

 private:
  std::unique_ptr<ModelSource> source_;
};

class StoredCheckpoint final : public StoredTensors {
 public:
  static absl::StatusOr<std::unique_ptr<StoredTensors>> Open(const std::string& folder) {
    ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
    auto checkpoint = std::make_unique<StoredCheckpoint>();
    ASSIGN_OR_RETURN(const auto parts, PartsOf(manifest));
    for (const auto& [part, names] : parts)
      RETURN_IF_ERROR(checkpoint->AddTensors(folder, part, names, manifest));
    for (const auto& [name, file] : manifest.files) {
      // The index says how the model is cut into files, which is no difference of its content.
      if (!file.tensors.empty() || name == kModelIndexName) continue;
      RETURN_IF_ERROR(checkpoint->AddBytes(folder, name, file));
    }
    return checkpoint;
  }

  absl::Status Read(const StoredKey& key, int64_t begin_elements, int64_t count,
                    char* into) const override {
    const auto& [part, name] = key;
    if (const auto file = files_.find(part); file != files_.end()) {
      ASSIGN_OR_RETURN(const StoredSlice slice,
                       CheckStoredSlice(tables_.at(part), name, begin_elements, count));
      uint32_t crc32 = kCrc32OfNothing;  // Of a part of the tensor: says nothing.
      return file->second.Read(name, slice.begin_bytes, slice.size_bytes, into, &crc32);
    }
    const auto bytes = bytes_.find(name);
    if (bytes == bytes_.end()) return absl::NotFoundError(absl::StrCat("no entry '", name, "'"));
    return ReadBytes(bytes->second, begin_elements, count, into);
  }

 private:
  using Names = std::vector<std::string>;

  // The files of tensors by part.
  static absl::StatusOr<std::map<std::string, Names>> PartsOf(const Manifest& manifest) {
    std::map<std::string, Names> parts;
    for (const auto& [name, file] : manifest.files) {
      if (file.tensors.empty()) continue;
      parts[IsModelFileName(name)        ? kModelPart
            : name == kOptimizerFileName ? "optimizer"
                                         : name]
          .push_back(name);
    }
    // Two models in one folder have no single answer.
    if (parts.count(kModelPart) != 0) RETURN_IF_ERROR(ModelFilesOf(manifest).status());
    return parts;
  }

  absl::Status AddTensors(const std::string& folder, const std::string& part, const Names& names,
                          const Manifest& manifest) {
    ASSIGN_OR_RETURN(CheckedFiles files, CheckedFiles::Open(folder, names, manifest));
    const TensorTable& table = tables_[part] = TableOf(files.header());
    for (const auto& [tensor, info] : table) {
      ASSIGN_OR_RETURN((entries_[{part, tensor}]), EntryOf(tensor, info));
    }
    files_.emplace(part, std::move(files));
    return absl::OkStatus();
  }

  absl::Status AddBytes(const std::string& folder, const std::string& name,
                        const ManifestFile& expected) {
    ASSIGN_OR_RETURN(OpenFile file, OpenRegularFile(absl::StrCat(folder, "/", name)));
    if (file.size_bytes != expected.size_bytes) {
      return absl::DataLossError(absl::StrCat(file.path, " has ", file.size_bytes,
                                              " bytes, the manifest says ", expected.size_bytes));
    }
    entries_[{"trainer", name}] = {
        std::nullopt, {file.size_bytes}, file.size_bytes, file.size_bytes};
    bytes_.emplace(name, std::move(file));
    return absl::OkStatus();
  }

  std::map<std::string, CheckedFiles> files_;  // By part.
  std::map<std::string, TensorTable> tables_;  // Likewise.
  std::map<std::string, OpenFile> bytes_;      // By name.
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoredTensors>> StoredTensors::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string absolute, AbsolutePath(path));
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(absolute));
  const auto manifest = storage->Look(absl::StrCat(absolute, "/", kManifestName));
  // Where that cannot be seen, opening a model makes the error.
  return manifest.ok() && manifest->has_value() ? StoredCheckpoint::Open(absolute)
                                                : StoredModel::Open(absolute);
}

}  // namespace tessera
