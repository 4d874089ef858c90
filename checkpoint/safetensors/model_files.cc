#include "checkpoint/safetensors/model_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/rounded_values.h"

namespace tessera {
namespace {

std::string PathIn(const std::string& folder, const std::string& file) {
  return absl::StrCat(folder, "/", file);
}

absl::StatusOr<std::vector<std::pair<std::string, int64_t>>> SizesOf(
    const std::vector<NamedTensorInfo>& tensors, int64_t* all_bytes) {
  std::vector<std::pair<std::string, int64_t>> sizes;
  *all_bytes = 0;
  for (const auto& [name, info] : tensors) {
    ASSIGN_OR_RETURN(const int64_t numel, NumelOf(info));
    const std::optional<int64_t> size_bytes = SizeBytes(info.dtype, numel);
    // Sizes come from headers of foreign files too.
    if (!size_bytes.has_value() || __builtin_add_overflow(*all_bytes, *size_bytes, all_bytes))
      return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "': its size overflows"));
    sizes.emplace_back(name, *size_bytes);
  }
  return sizes;
}

}  // namespace

int64_t ModelFilesPlan::all_bytes() const {
  int64_t bytes = 0;
  for (const auto& [file, header] : headers) bytes += header.file_bytes;
  return bytes;
}

absl::StatusOr<ModelFilesPlan> PlanModelFiles(const std::vector<NamedTensorInfo>& tensors,
                                              const std::map<std::string, std::string>& metadata,
                                              int64_t max_file_bytes,
                                              const std::string& single_name) {
  ModelFilesPlan plan;
  if (max_file_bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat("files of ", max_file_bytes, " bytes"));
  int64_t all_bytes = 0;
  ASSIGN_OR_RETURN(const auto sizes, SizesOf(tensors, &all_bytes));
  if (max_file_bytes == 0 || tensors.empty()) {
    ASSIGN_OR_RETURN(plan.headers[single_name], PlaceInfos(tensors, metadata));
    for (const auto& [name, size_bytes] : sizes) plan.file_of[name] = single_name;
    return plan;
  }
  ASSIGN_OR_RETURN(const std::vector<ModelShard> shards, SplitIntoShards(sizes, max_file_bytes));
  std::map<std::string, const NamedTensorInfo*> by_name;
  for (const NamedTensorInfo& tensor : tensors) by_name[tensor.name] = &tensor;
  for (const ModelShard& shard : shards) {
    std::vector<NamedTensorInfo> of_shard;
    for (const std::string& name : shard.tensors) {
      of_shard.push_back(*by_name.at(name));
      plan.file_of[name] = shard.file;
    }
    ASSIGN_OR_RETURN(plan.headers[shard.file], PlaceInfos(of_shard, metadata));
  }
  if (shards.size() > 1) plan.index = EncodeModelIndex({plan.file_of, all_bytes});
  return plan;
}

absl::Status ModelFiles::Create(const std::string& folder, const ModelFilesPlan& plan) {
  for (const auto& [file, header] : plan.headers)
    RETURN_IF_ERROR(ModelFile::Create(PathIn(folder, file), header));
  if (plan.index.empty()) return absl::OkStatus();
  // Not renamed: it is only read in a folder that has its name.
  return WriteWholeFile(PathIn(folder, kModelIndexName), plan.index);
}

absl::StatusOr<ModelFile*> ModelFiles::FileOf(const std::string& tensor) {
  const auto file = plan_.file_of.find(tensor);
  if (file == plan_.file_of.end())
    return absl::NotFoundError(absl::StrCat(folder_, ": no file has tensor '", tensor, "'"));
  if (!open_.has_value() || open_name_ != file->second) {
    // The file before is synced before it closes: a later error of it would go unnoticed.
    RETURN_IF_ERROR(Sync());
    ASSIGN_OR_RETURN(ModelFile opened, ModelFile::Open(PathIn(folder_, file->second),
                                                       plan_.headers.at(file->second), direct_));
    open_.emplace(std::move(opened));
    open_name_ = file->second;
  }
  return &*open_;
}

absl::Status ModelFiles::WriteSlice(const std::string& tensor, int64_t begin_elements,
                                    ConstValues values, uint32_t* crc32,
                                    const RangeSink::Wrote& wrote) {
  // Rounding takes memory, so it is done in pieces.
  constexpr int64_t kPieceElements = 1 << 18;
  ASSIGN_OR_RETURN(ModelFile * file, FileOf(tensor));
  const std::optional<DType> dtype =
      LayoutDType(plan_.headers.at(open_name_).tensors.at(tensor).dtype);
  if (!dtype.has_value() || *dtype == values.dtype())
    return file->WriteSlice(tensor, begin_elements, values, crc32, wrote);
  const int64_t count = static_cast<int64_t>(values.size());
  const char* data = static_cast<const char*>(values.data());
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const ConstValues piece(data + begin * SizeBytes(values.dtype()),
                            std::min(kPieceElements, count - begin), values.dtype());
    absl::StatusOr<std::string> rounded = RoundValues(piece, *dtype);
    if (!rounded.ok()) return Annotate(rounded.status(), absl::StrCat("tensor '", tensor, "'"));
    RETURN_IF_ERROR(file->WriteStored(tensor, begin_elements + begin, *rounded, crc32, wrote));
  }
  return absl::OkStatus();
}

absl::Status ModelFiles::WriteSlice(const std::string& tensor, int64_t begin_elements, DType dtype,
                                    ByteSource* values, uint32_t* crc32,
                                    const RangeSink::Wrote& wrote) {
  ASSIGN_OR_RETURN(ModelFile * file, FileOf(tensor));
  return file->WriteSlice(tensor, begin_elements, dtype, values, crc32, wrote);
}

absl::Status ModelFiles::WriteBytes(const std::string& tensor, absl::string_view bytes) {
  ASSIGN_OR_RETURN(ModelFile * file, FileOf(tensor));
  return file->WriteBytes(tensor, bytes);
}

absl::Status ModelFiles::WriteStored(const std::string& tensor, int64_t begin_elements,
                                     absl::string_view bytes) {
  ASSIGN_OR_RETURN(ModelFile * file, FileOf(tensor));
  return file->WriteStored(tensor, begin_elements, bytes);
}

absl::Status ModelFiles::Sync() { return open_.has_value() ? open_->Sync() : absl::OkStatus(); }

absl::Status ModelFiles::Publish(const std::string& folder, const ModelFilesPlan& plan) {
  // A crash in between does not show: a folder of several files gets its name after them.
  for (const auto& [file, header] : plan.headers)
    RETURN_IF_ERROR(ModelFile::Publish(PathIn(folder, file)));
  return absl::OkStatus();
}

}  // namespace tessera
