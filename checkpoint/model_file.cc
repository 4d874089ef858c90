#include "checkpoint/model_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "checkpoint/file_io.h"
#include "checkpoint/model_reader.h"

namespace tessera {
namespace {

std::string PartialPath(const std::string& path) { return path + ".partial"; }

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open folder ", folder));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("sync folder ", folder));
  return absl::OkStatus();
}

// Whether the two files have each other's name now. Not where there is but one, where `to` is a
// folder, or on a file system that cannot.
bool Exchange(const std::string& from, const std::string& to) {
  struct stat info;
  if (lstat(to.c_str(), &info) != 0 || S_ISDIR(info.st_mode)) return false;
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
}

}  // namespace

absl::Status ModelFile::Create(const std::string& path, const SafetensorsHeader& header) {
  if (path.empty() || path[0] != '/' || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("model file '", path, "' is no absolute file path"));
  }
  const std::string partial = PartialPath(path);
  const UniqueFd fd(open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", partial));
  if (const int error = posix_fallocate(fd.get(), 0, header.file_bytes); error != 0) {
    return ErrnoStatus(error, absl::StrCat("reserve ", header.file_bytes, " bytes for ", partial));
  }
  RETURN_IF_ERROR(FaultPoint("model-file.write"));
  return WriteAt(fd.get(), EncodeHeader(header), 0, partial);
}

absl::StatusOr<ModelFile> ModelFile::Open(const std::string& path, const SafetensorsHeader& header,
                                          DirectWrites* direct) {
  ASSIGN_OR_RETURN(RangeWriter writer, RangeWriter::Open(PartialPath(path), direct));
  return ModelFile(std::move(writer), &header);
}

absl::Status ModelFile::WriteSlice(const std::string& tensor, int64_t begin_elements,
                                   ConstValues values, uint32_t* crc32,
                                   const RangeWriter::Wrote& wrote) {
  ASSIGN_OR_RETURN(const StoredTensor* found, Find(tensor));
  const StoredTensor& stored = *found;
  const int64_t element_bytes = SizeBytes(values.dtype());
  const int64_t numel = (stored.end_bytes - stored.begin_bytes) / element_bytes;
  if (stored.dtype != values.dtype() || begin_elements < 0 || begin_elements > numel ||
      static_cast<int64_t>(values.size()) > numel - begin_elements) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": elements [", begin_elements, ", +",
                                                   values.size(), ") of ", Name(values.dtype()),
                                                   " are not in tensor '", tensor, "'"));
  }
  return WriteStored(tensor, begin_elements,
                     {static_cast<const char*>(values.data()), values.size_bytes()}, crc32, wrote);
}

absl::StatusOr<const StoredTensor*> ModelFile::Find(const std::string& tensor) const {
  const auto it = header_->tensors.find(tensor);
  if (it != header_->tensors.end()) return &it->second;
  return absl::NotFoundError(absl::StrCat(path(), " has no tensor '", tensor, "'"));
}

absl::Status ModelFile::WriteStored(const std::string& tensor, int64_t begin_elements,
                                    absl::string_view bytes, uint32_t* crc32,
                                    const RangeWriter::Wrote& wrote) {
  ASSIGN_OR_RETURN(const StoredTensor* stored, Find(tensor));
  const std::optional<int64_t> begin = SizeBytes(stored->dtype, begin_elements);
  const int64_t all_bytes = stored->end_bytes - stored->begin_bytes;
  if (!begin.has_value() || *begin < 0 || *begin > all_bytes ||
      static_cast<int64_t>(bytes.size()) > all_bytes - *begin) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": ", bytes.size(),
                                                   " bytes from element ", begin_elements,
                                                   " on are not in tensor '", tensor, "'"));
  }
  RETURN_IF_ERROR(FaultPoint("model-file.write"));
  return writer_.Write(bytes, header_->data_offset_bytes + stored->begin_bytes + *begin, crc32,
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
  return writer_.Sync();
}

absl::Status ModelFile::Publish(const std::string& path) {
  RETURN_IF_ERROR(FaultPoint("model-file.publish"));
  const std::string partial = PartialPath(path);
  const bool exchanged = Exchange(partial, path);
  if (!exchanged && rename(partial.c_str(), path.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat("rename to ", path));
  if (const absl::Status synced = SyncFolderOf(path); !synced.ok()) {
    // Who is told of an error finds what was there before.
    if (exchanged) (void)Exchange(path, partial);
    return synced;
  }
  if (exchanged) Discard(path);  // What has the partial one's name now is the older file.
  return absl::OkStatus();
}

void ModelFile::Discard(const std::string& path) { unlink(PartialPath(path).c_str()); }

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
