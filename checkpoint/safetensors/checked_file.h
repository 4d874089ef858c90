// A file of tensors of a checkpoint, read piece by piece and checked against the manifest.
//
//   ASSIGN_OR_RETURN(CheckedFile file, CheckedFile::Open(folder, "model.safetensors", manifest));
//   uint32_t crc32 = kCrc32OfNothing;
//   file.Read("block0.up.weight", begin_bytes, size_bytes, into, &crc32);
//   file.Check("block0.up.weight", crc32_of_all_its_bytes);
//
// A reader of a part of a tensor cannot check it alone: sums of parts are combined (crc32.h).
// Move-only; all that is const is thread-safe.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_CHECKED_FILE_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_CHECKED_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/storage/storage.h"

namespace tessera {

class CheckedFile {
 public:
  // Errors: DataLoss         it is missing, or its size, header or list of tensors differs from the
  //                          manifest's; naming the tensor that it ends within, or else some that
  //                          it had
  //         InvalidArgument  the manifest has no such file
  //         others           the file system's.
  static absl::StatusOr<CheckedFile> Open(const std::string& folder, const std::string& name,
                                          const Manifest& manifest);

  const SafetensorsHeader& header() const { return header_; }
  // Errors: NotFound  no such tensor.
  absl::StatusOr<const StoredTensor*> Find(const std::string& tensor) const;

  // Bytes [begin_bytes, begin_bytes + size_bytes) of the tensor; `crc32` is extended by them.
  // Errors: NotFound  no such tensor; InvalidArgument  outside of it; DataLoss  the file became
  //         shorter; others  the file system's. The message names file and tensor.
  absl::Status Read(const std::string& tensor, int64_t begin_bytes, int64_t size_bytes, void* into,
                    uint32_t* crc32) const;
  // The same, in pieces as those of ReadableFile::ReadInPieces; each was summed before it is given.
  absl::Status ReadInPieces(const std::string& tensor, int64_t begin_bytes, int64_t size_bytes,
                            ReadableFile::PieceRoom* room, ReadableFile::TakePiece take,
                            uint32_t* crc32) const;
  // Errors: DataLoss  naming file and tensor: that is not the checksum of what was saved.
  absl::Status Check(const std::string& tensor, uint32_t crc32) const;
  // Reads the tensor and checks it.
  absl::Status Verify(const std::string& tensor) const;

 private:
  // Where bytes [begin_bytes, begin_bytes + size_bytes) of the tensor are in the file.
  // Errors: as Read, but for the file system's.
  absl::StatusOr<int64_t> OffsetOf(const std::string& tensor, int64_t begin_bytes,
                                   int64_t size_bytes) const;

  CheckedFile(std::unique_ptr<ReadableFile> file, SafetensorsHeader header, ManifestFile expected)
      : file_(std::move(file)), header_(std::move(header)), expected_(std::move(expected)) {}

  std::unique_ptr<ReadableFile> file_;
  SafetensorsHeader header_;
  ManifestFile expected_;
};

// A checkpoint's file without tensors, whole. Errors: as CheckedFile::Open; ResourceExhausted  it
// has more than 1 GiB.
absl::StatusOr<std::string> ReadCheckedBytes(const std::string& folder, const std::string& name,
                                             const Manifest& manifest);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_CHECKED_FILE_H_
