#include "checkpoint/safetensors/model_file.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/model_reader.h"
#include "checkpoint/storage/storage_of.h"
#include "checkpoint/storage/storage_path.h"

namespace tessera {
absl::Status ModelFile::Create(const std::string& path, const SafetensorsHeader& header) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  if (!IsAbsolutePath(path) || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("model file '", path, "' is not an absolute file path"));
  }
  RETURN_IF_ERROR(CheckSavePath(path));
  // Before all that is written.
  // Found before anything is written, and not after hours.
  ASSIGN_OR_RETURN(const std::optional<EntryInfo> there, storage->Look(path, Links::kSeen));
  if (there.has_value() && there->kind != EntryInfo::Kind::kFile) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a regular file, so it is not replaced"));
  }
  // At its full size from the beginning: ranks write into it at once, and a full disk is an error
  // now.
  return storage->CreateFile(PartialPath(path), header.file_bytes, EncodeHeader(header));
}

absl::StatusOr<ModelFile> ModelFile::Open(const std::string& path, const SafetensorsHeader& header,
                                          DirectWrites* direct) {
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  ASSIGN_OR_RETURN(std::unique_ptr<RangeSink> writer,
                   storage->OpenToWrite(PartialPath(path), direct));
  return ModelFile(std::move(writer), &header);
}

absl::Status ModelFile::WriteSlice(const std::string& tensor, int64_t begin_elements,
                                   ConstValues values, uint32_t* crc32,
                                   const RangeSink::Wrote& wrote) {
  MemoryBytes bytes({static_cast<const char*>(values.data()), values.size_bytes()});
  return WriteSlice(tensor, begin_elements, values.dtype(), &bytes, crc32, wrote);
}

absl::Status ModelFile::WriteSlice(const std::string& tensor, int64_t begin_elements, DType dtype,
                                   ByteSource* values, uint32_t* crc32,
                                   const RangeSink::Wrote& wrote) {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(tensor));
  const int64_t element_bytes = SizeBytes(dtype);
  const int64_t numel = (stored->end_bytes - stored->begin_bytes) / element_bytes;
  const int64_t count = values->size_bytes() / element_bytes;
  // Written so that no sum can overflow.
  if (stored->dtype != dtype || begin_elements < 0 || begin_elements > numel ||
      count > numel - begin_elements) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": elements [", begin_elements, ", +",
                                                   count, ") of ", Name(dtype),
                                                   " are not in tensor '", tensor, "'"));
  }
  return WriteFrom(values, *stored, begin_elements * element_bytes, crc32, wrote);
}

absl::StatusOr<const StoredTensor*> ModelFile::Find(const std::string& tensor) const {
  const auto it = header_->tensors.find(tensor);
  if (it != header_->tensors.end()) return &it->second;
  return absl::NotFoundError(absl::StrCat(path(), " has no tensor '", tensor, "'"));
}

absl::Status ModelFile::WriteStored(const std::string& tensor, int64_t begin_elements,
                                    absl::string_view bytes, uint32_t* crc32,
                                    const RangeSink::Wrote& wrote) {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(tensor));
  const std::optional<int64_t> begin = SizeBytes(stored->dtype, begin_elements);
  const int64_t all_bytes = stored->end_bytes - stored->begin_bytes;
  if (!begin.has_value() || *begin < 0 || *begin > all_bytes ||
      static_cast<int64_t>(bytes.size()) > all_bytes - *begin) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": ", bytes.size(),
                                                   " bytes from element ", begin_elements,
                                                   " on are not in tensor '", tensor, "'"));
  }
  MemoryBytes memory(bytes);
  return WriteFrom(&memory, *stored, *begin, crc32, wrote);
}

absl::Status ModelFile::WriteFrom(ByteSource* bytes, const StoredTensor& stored,
                                  int64_t begin_bytes, uint32_t* crc32,
                                  const RangeSink::Wrote& wrote) {
  RETURN_IF_ERROR(FaultPoint("model-file.write"));
  return writer_->Write(bytes, header_->data_offset_bytes + stored.begin_bytes + begin_bytes, crc32,
                        wrote);
}

absl::Status ModelFile::WriteBytes(const std::string& tensor, absl::string_view bytes) {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(tensor));
  if (static_cast<int64_t>(bytes.size()) == stored->end_bytes - stored->begin_bytes)
    return WriteStored(tensor, 0, bytes);
  return absl::InvalidArgumentError(absl::StrCat(path(), ": ", bytes.size(), " bytes for tensor '",
                                                 tensor, "', which has ",
                                                 stored->end_bytes - stored->begin_bytes));
}

absl::Status ModelFile::Sync() {
  RETURN_IF_ERROR(FaultPoint("model-file.sync"));
  return writer_->Sync();
}

absl::Status ModelFile::Publish(const std::string& path) {
  RETURN_IF_ERROR(FaultPoint("model-file.publish"));
  ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path));
  return storage->PublishFile(PartialPath(path), path);
}

void ModelFile::Discard(const std::string& path) {
  const absl::StatusOr<Storage*> storage = StorageOf(path);
  // A partial file that stays costs room, and the next save removes it.
  if (storage.ok()) (void)(*storage)->RemoveFile(PartialPath(path));
}

absl::StatusOr<std::vector<LoadedTensor>> ReadModelFile(const std::string& path) {
  ASSIGN_OR_RETURN(const ModelReader file, ModelReader::Open(path));
  std::vector<LoadedTensor> tensors;
  for (const auto& [name, stored] : file.header().tensors) {
    if (stored.dtype != DType::kFp32 && stored.dtype != DType::kFp64) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", name, "' is neither F32 nor F64"));
    }
    LoadedTensor& tensor = tensors.emplace_back();
    tensor.stored = stored;
    const bool is_fp64 = stored.dtype == DType::kFp64;
    const int64_t numel = (stored.end_bytes - stored.begin_bytes) / (is_fp64 ? 8 : 4);
    tensor.values.resize(is_fp64 ? 0 : numel);
    tensor.values64.resize(is_fp64 ? numel : 0);
    const Values into =
        is_fp64 ? Values(absl::MakeSpan(tensor.values64)) : Values(absl::MakeSpan(tensor.values));
    RETURN_IF_ERROR(file.ReadSlice(name, 0, into));
  }
  return tensors;
}

}  // namespace tessera
