// A model in one safetensors file or several of at most so many bytes, written by many ranks at
// once, each the bytes that it owns.
//
//   folder/ model-00001-of-00002.safetensors     tensors in their order, until the next is too much
//           model-00002-of-00002.safetensors
//           model.safetensors.index.json         which tensor is in which file
//
//   one rank: Create ──► all ranks: WriteSlice ..., Sync ──► one rank: Publish
//
// Each file is a ModelFile (model_file.h); one is open at a time, and synced before the next is
// opened. If all fits into one file there is no index. Names, order and split are those of
// huggingface_hub, so that others read it. ModelFiles is thread-compatible.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_MODEL_FILES_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_MODEL_FILES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "checkpoint/storage/byte_source.h"
#include "checkpoint/storage/direct_writes.h"
#include "checkpoint/storage/storage.h"
#include "layout/dtype.h"
#include "layout/values.h"

namespace tessera {

struct ModelFilesPlan {
  std::map<std::string, SafetensorsHeader> headers;  // By file.
  std::map<std::string, std::string> file_of;        // By tensor.
  std::string index;                                 // The index's text; empty: there is none.

  int64_t all_bytes() const;
};

// `max_file_bytes`: of the tensors in a file, headers not counted; a larger tensor has a file of
// its own; 0: one file, called `single_name`. Every file has the metadata.
// Errors: as PlaceInfos; InvalidArgument  a negative limit.
absl::StatusOr<ModelFilesPlan> PlanModelFiles(const std::vector<NamedTensorInfo>& tensors,
                                              const std::map<std::string, std::string>& metadata,
                                              int64_t max_file_bytes,
                                              const std::string& single_name = kSingleFileName);

class ModelFiles {
 public:
  // `plan` is not owned and outlives this. `direct`: as Storage::OpenToWrite's.
  ModelFiles(std::string folder, const ModelFilesPlan* plan, DirectWrites* direct = nullptr)
      : folder_(std::move(folder)), plan_(*plan), direct_(direct) {}

  // Makes all files in full size with their headers, and the index. Errors: as ModelFile::Create.
  static absl::Status Create(const std::string& folder, const ModelFilesPlan& plan);

  // Elements [begin_elements, begin_elements + values.size()); where the file has the tensor in a
  // smaller dtype they are rounded (rounded_values.h). `crc32`, unless null, is extended by what is
  // stored; `wrote` is told of that, piece by piece.
  // Errors: as ModelFile::WriteSlice; OutOfRange  a value is too large for it, naming the tensor.
  absl::Status WriteSlice(const std::string& tensor, int64_t begin_elements, ConstValues values,
                          uint32_t* crc32 = nullptr, const RangeSink::Wrote& wrote = nullptr);
  // Errors: as those of ModelFile. Nothing is rounded.
  absl::Status WriteSlice(const std::string& tensor, int64_t begin_elements, DType dtype,
                          ByteSource* values, uint32_t* crc32, const RangeSink::Wrote& wrote);
  absl::Status WriteBytes(const std::string& tensor, absl::string_view bytes);
  absl::Status WriteStored(const std::string& tensor, int64_t begin_elements,
                           absl::string_view bytes);
  // Makes what this process wrote durable.
  absl::Status Sync();

  // Gives the finished files their names in the folder, durably.
  static absl::Status Publish(const std::string& folder, const ModelFilesPlan& plan);

 private:
  // The file that has the tensor.
  absl::StatusOr<ModelFile*> FileOf(const std::string& tensor);

  const std::string folder_;
  const ModelFilesPlan& plan_;
  DirectWrites* const direct_;
  std::string open_name_;
  std::optional<ModelFile> open_;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_MODEL_FILES_H_
