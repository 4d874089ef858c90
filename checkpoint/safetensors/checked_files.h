// The tensors of a checkpoint's model or optimizer, in one file or several, read and checked as
// those of one (checked_file.h). Move-only; all that is const is thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_CHECKED_FILES_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_CHECKED_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/checked_file.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/storage/storage.h"

namespace tessera {

class CheckedFiles {
 public:
  // Opens the files, a descriptor each.
  // Errors: as CheckedFile::Open; DataLoss  two of them have a tensor, named.
  static absl::StatusOr<CheckedFiles> Open(const std::string& folder,
                                           const std::vector<std::string>& names,
                                           const Manifest& manifest);
  // The model of a checkpoint, and its index is looked at. Errors: also as ModelFilesOf and
  // CheckModelIndex.
  static absl::StatusOr<CheckedFiles> OpenModel(const std::string& folder,
                                                const Manifest& manifest);

  // The tensors of all files; the places of each are in its own file's data.
  const SafetensorsHeader& header() const { return all_; }

  // As those of CheckedFile.
  absl::StatusOr<const StoredTensor*> Find(const std::string& tensor) const;
  absl::Status Read(const std::string& tensor, int64_t begin_bytes, int64_t size_bytes, void* into,
                    uint32_t* crc32) const;
  absl::Status ReadInPieces(const std::string& tensor, int64_t begin_bytes, int64_t size_bytes,
                            ReadableFile::PieceRoom* room, ReadableFile::TakePiece take,
                            uint32_t* crc32) const;
  absl::Status Check(const std::string& tensor, uint32_t crc32) const;
  absl::Status Verify(const std::string& tensor) const;

 private:
  // The first file where no file has it, whose error says so.
  const CheckedFile& FileOf(const std::string& tensor) const;

  std::vector<CheckedFile> files_;         // At least one.
  std::map<std::string, size_t> file_of_;  // By tensor.
  SafetensorsHeader all_;
};

// Whether the index of a checkpoint's model is the one that was saved; OK where it has none. The
// manifest says by itself where a tensor is: the index is for other programs, which a wrong one
// would lead astray.
// Errors: DataLoss  it is missing, or is another, naming a tensor that it has in the wrong place.
absl::Status CheckModelIndex(const std::string& folder, const Manifest& manifest);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_CHECKED_FILES_H_
