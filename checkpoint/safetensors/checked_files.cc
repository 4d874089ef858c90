#include "checkpoint/safetensors/checked_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_index.h"

namespace tessera {

absl::StatusOr<CheckedFiles> CheckedFiles::Open(const std::string& folder,
                                                const std::vector<std::string>& names,
                                                const Manifest& manifest) {
  CheckedFiles files;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(CheckedFile file, CheckedFile::Open(folder, name, manifest));
    files.all_.metadata.insert(file.header().metadata.begin(), file.header().metadata.end());
    for (const auto& [tensor, stored] : file.header().tensors) {
      // Which of the two counts would depend on the order of files.
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
  // The load itself goes by the manifest. The index is for other programs, which load by it.
  RETURN_IF_ERROR(CheckModelIndex(folder, manifest));
  return Open(folder, *names, manifest);
}

namespace {

// A tensor of which a damaged index, as far as it can be read, does not give the place; "" if
// there is none.
// Only for the message. The checksum has decided already.
std::string MisplacedBy(const std::string& path, const Manifest& manifest) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxIndexBytes);
  if (!text.ok()) return "";
  const absl::StatusOr<ModelIndex> index = DecodeModelIndex(*text);
  if (!index.ok()) return "";
  for (const auto& [file, expected] : manifest.files) {
    if (!IsModelFileName(file)) continue;
    for (const auto& [tensor, crc32] : expected.tensors) {
      const auto found = index->file_of.find(tensor);
      if (found == index->file_of.end())
        return absl::StrCat("; it lacks tensor '", tensor, "', which is in ", file);
      if (found->second != file)
        return absl::StrCat("; it has tensor '", tensor, "' in ", found->second, ", not in ", file);
    }
  }
  return "";
}

}  // namespace

absl::Status CheckModelIndex(const std::string& folder, const Manifest& manifest) {
  if (manifest.files.count(kModelIndexName) == 0) return absl::OkStatus();
  const absl::Status status = ReadCheckedBytes(folder, kModelIndexName, manifest).status();
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(
      status.message(), MisplacedBy(absl::StrCat(folder, "/", kModelIndexName), manifest)));
}

const CheckedFile& CheckedFiles::FileOf(const std::string& tensor) const {
  const auto file = file_of_.find(tensor);
  // For a tensor that is in none of them, the first file makes the error.
  return files_[file == file_of_.end() ? 0 : file->second];
}

absl::StatusOr<const StoredTensor*> CheckedFiles::Find(const std::string& tensor) const {
  return FileOf(tensor).Find(tensor);
}

absl::Status CheckedFiles::Read(const std::string& tensor, int64_t begin_bytes, int64_t size_bytes,
                                void* into, uint32_t* crc32) const {
  return FileOf(tensor).Read(tensor, begin_bytes, size_bytes, into, crc32);
}

absl::Status CheckedFiles::ReadInPieces(const std::string& tensor, int64_t begin_bytes,
                                        int64_t size_bytes, ReadableFile::PieceRoom* room,
                                        ReadableFile::TakePiece take, uint32_t* crc32) const {
  return FileOf(tensor).ReadInPieces(tensor, begin_bytes, size_bytes, room, take, crc32);
}

absl::Status CheckedFiles::Check(const std::string& tensor, uint32_t crc32) const {
  return FileOf(tensor).Check(tensor, crc32);
}

absl::Status CheckedFiles::Verify(const std::string& tensor) const {
  return FileOf(tensor).Verify(tensor);
}

}  // namespace tessera
