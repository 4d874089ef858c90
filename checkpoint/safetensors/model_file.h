// One consolidated safetensors file written by many ranks at once, each the bytes that it owns.
//
//   one rank:   Create ──►   all ranks: Open, WriteSlice ..., Sync   ──► one rank: Publish
//
// The file grows under "<path>.partial" and gets its name only when it is whole and on disk, so
// that a crash leaves the old file or the new one. No rank holds more than its own slices. Large
// slices may go past the page cache (storage/range_writer.h).
// Move-only; thread-compatible. Between the phases the ranks synchronise by themselves.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_MODEL_FILE_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_MODEL_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/storage/byte_source.h"
#include "checkpoint/storage/direct_writes.h"
#include "checkpoint/storage/storage.h"
#include "layout/dtype.h"
#include "layout/values.h"

namespace tessera {

class ModelFile {
 public:
  // Makes "<path>.partial" of full size with its header, in a folder that exists.
  // Errors: InvalidArgument the path is not absolute; NotFound no such folder; PermissionDenied;
  //         ResourceExhausted the disk is full. The message names the path.
  static absl::Status Create(const std::string& path, const SafetensorsHeader& header);
  // Opens what Create made. `direct`: as Storage::OpenToWrite's.
  static absl::StatusOr<ModelFile> Open(const std::string& path, const SafetensorsHeader& header,
                                        DirectWrites* direct = nullptr);

  // Writes elements [begin, begin + values.size()) of an F32 or F64 tensor. `crc32`, unless null,
  // is extended by their bytes; `wrote` is told of them, piece by piece.
  // Errors: NotFound no such tensor; InvalidArgument outside of it, or of another dtype;
  //         ResourceExhausted disk full.
  absl::Status WriteSlice(const std::string& tensor, int64_t begin_elements, ConstValues values,
                          uint32_t* crc32 = nullptr, const RangeSink::Wrote& wrote = nullptr);
  // The same with values of `dtype`, of which there are whole ones.
  absl::Status WriteSlice(const std::string& tensor, int64_t begin_elements, DType dtype,
                          ByteSource* values, uint32_t* crc32 = nullptr,
                          const RangeSink::Wrote& wrote = nullptr);
  // Writes elements from begin_elements on of a tensor of whatever dtype, as they are stored.
  // Errors: NotFound no such tensor; InvalidArgument outside of it, or not between bytes.
  absl::Status WriteStored(const std::string& tensor, int64_t begin_elements,
                           absl::string_view bytes, uint32_t* crc32 = nullptr,
                           const RangeSink::Wrote& wrote = nullptr);
  // Writes a tensor of whatever dtype, whole.
  // Errors: as WriteSlice; InvalidArgument  it has another size.
  absl::Status WriteBytes(const std::string& tensor, absl::string_view bytes);
  // Makes what this process wrote durable.
  absl::Status Sync();

  // Gives the finished file its name, durably. After an error the file that had the name has it
  // again; where that could not be synced on a file system that cannot exchange two files
  // (renameat2), the finished one has it.
  static absl::Status Publish(const std::string& path);
  // Removes "<path>.partial", if there is one.
  static void Discard(const std::string& path);

 private:
  ModelFile(std::unique_ptr<RangeSink> writer, const SafetensorsHeader* header)
      : writer_(std::move(writer)), header_(header) {}

  absl::StatusOr<const StoredTensor*> Find(const std::string& tensor) const;
  absl::Status WriteFrom(ByteSource* bytes, const StoredTensor& stored, int64_t begin_bytes,
                         uint32_t* crc32, const RangeSink::Wrote& wrote);
  const std::string& path() const { return writer_->path(); }

  std::unique_ptr<RangeSink> writer_;
  const SafetensorsHeader* header_;  // Not owned; outlives this.
};

struct LoadedTensor {
  StoredTensor stored;
  std::vector<float> values;     // Of an F32 tensor.
  std::vector<double> values64;  // Of an F64 tensor.
};

// Reads a whole file of F32 and F64 tensors back. Errors: as DecodeHeader, and those of the file
// system.
absl::StatusOr<std::vector<LoadedTensor>> ReadModelFile(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_MODEL_FILE_H_
