#include "checkpoint/safetensors/indexed_model.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status Check(const ModelIndex& index, const std::map<std::string, ModelReader>& files) {
  std::map<std::string, TensorTable> tables;
  for (const auto& [name, file] : files) tables[name] = file.tensors();
  return CheckAgainstFiles(index, tables);
}

}  // namespace

IndexedModel::IndexedModel(std::string path, ModelIndex index,
                           std::map<std::string, ModelReader> files, uint64_t identity)
    : path_(std::move(path)),
      index_(std::move(index)),
      files_(std::move(files)),
      identity_(identity) {
  for (const auto& [name, file] : files_)
    tensors_.insert(file.tensors().begin(), file.tensors().end());
}

absl::StatusOr<IndexedModel> IndexedModel::Open(const std::string& index_path) {
  ASSIGN_OR_RETURN(const OpenFile index_file, OpenRegularFile(index_path));
  ASSIGN_OR_RETURN(const std::string json, ReadSmallFile(index_file, kMaxIndexBytes));
  absl::StatusOr<ModelIndex> index = DecodeModelIndex(json);
  if (!index.ok()) return Annotate(index.status(), index_path);
  FileIdentity identity;
  identity.MixBytes(json);
  const std::string folder = index_path.substr(0, index_path.rfind('/') + 1);
  std::map<std::string, ModelReader> files;
  // Files that the index names. They were checked to be in its folder.
  for (const std::string& name : FilesOf(*index)) {
    absl::StatusOr<ModelReader> file = ModelReader::Open(folder + name);
    if (!file.ok()) return Annotate(file.status(), index_path);
    // Of every file: one that is replaced makes it another model.
    identity.MixWord(file->identity());
    files.emplace(name, *std::move(file));
  }
  if (const absl::Status status = Check(*index, files); !status.ok())
    return Annotate(status, index_path);
  return IndexedModel(index_path, *std::move(index), std::move(files), identity.value());
}

absl::Status IndexedModel::ReadSlice(const std::string& tensor, int64_t begin_elements,
                                     Values into) const {
  const auto file = index_.file_of.find(tensor);
  if (file == index_.file_of.end())
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor '", tensor, "'"));
  return files_.at(file->second).ReadSlice(tensor, begin_elements, into);
}

absl::Status IndexedModel::ReadStored(const std::string& tensor, int64_t begin_elements,
                                      int64_t count, char* into) const {
  const auto file = index_.file_of.find(tensor);
  if (file == index_.file_of.end())
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor '", tensor, "'"));
  return files_.at(file->second).ReadStored(tensor, begin_elements, count, into);
}

}  // namespace tessera
