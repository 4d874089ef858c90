#include "checkpoint/checked_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<CheckedFiles> CheckedFiles::Open(const std::string& folder,
                                                const std::vector<std::string>& names,
                                                const Manifest& manifest) {
  CheckedFiles files;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(CheckedFile file, CheckedFile::Open(folder, name, manifest));
    files.all_.metadata.insert(file.header().metadata.begin(), file.header().metadata.end());
    for (const auto& [tensor, stored] : file.header().tensors) {
      if (!files.file_of_.emplace(tensor, files.files_.size()).second) {
        return absl::DataLossError(
            absl::StrCat(folder, ": tensor '", tensor, "' is in ", name, " and in another file"));
      }
      files.all_.tensors.emplace(tensor, stored);
    }
    files.files_.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<CheckedFiles> CheckedFiles::OpenModel(const std::string& folder,
                                                     const Manifest& manifest) {
  const absl::StatusOr<std::vector<std::string>> names = ModelFilesOf(manifest);
  if (!names.ok()) return Annotate(names.status(), folder);
  return Open(folder, *names, manifest);
}

const CheckedFile& CheckedFiles::FileOf(const std::string& tensor) const {
  const auto file = file_of_.find(tensor);
  return files_[file == file_of_.end() ? 0 : file->second];
}

absl::StatusOr<const StoredTensor*> CheckedFiles::Find(const std::string& tensor) const {
  return FileOf(tensor).Find(tensor);
}

absl::Status CheckedFiles::Read(const std::string& tensor, int64_t begin_bytes, int64_t size_bytes,
                                void* into, uint32_t* crc32) const {
  return FileOf(tensor).Read(tensor, begin_bytes, size_bytes, into, crc32);
}

absl::Status CheckedFiles::Check(const std::string& tensor, uint32_t crc32) const {
  return FileOf(tensor).Check(tensor, crc32);
}

absl::Status CheckedFiles::Verify(const std::string& tensor) const {
  return FileOf(tensor).Verify(tensor);
}

}  // namespace tessera
