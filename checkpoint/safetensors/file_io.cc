#include "checkpoint/safetensors/file_io.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/storage/storage_of.h"

namespace tessera {

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  return storage->WriteWhole(path, bytes);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage->OpenFile(path));
  // Before it is allocated.
  if (file->size_bytes() > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", file->size_bytes(), " bytes, more than ", max_bytes));
  }
  std::string bytes(file->size_bytes(), '\0');
  RETURN_IF_ERROR(file->Read(0, file->size_bytes(), bytes.data()));
  return bytes;
}

}  // namespace tessera
