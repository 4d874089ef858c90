#include "checkpoint/safetensors/model_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The size and the header, as bytes; less where the file is shorter than it says.
absl::StatusOr<std::string> ReadPrefix(const OpenFile& file) {
  std::string prefix(std::min<int64_t>(file.size_bytes, 8), '\0');
  // The length is untrusted, and is allocated below: the format and the file bound it.
  RETURN_IF_ERROR(ReadBytes(file, 0, prefix.size(), prefix.data()));
  uint64_t header_bytes = 0;
  memcpy(&header_bytes, prefix.data(), prefix.size());
  header_bytes = std::min<uint64_t>(
      {header_bytes, kMaxHeaderBytes, static_cast<uint64_t>(file.size_bytes) - prefix.size()});
  prefix.resize(prefix.size() + header_bytes);
  RETURN_IF_ERROR(ReadBytes(file, 8, header_bytes, prefix.data() + 8));
  return prefix;
}

}  // namespace

ModelReader::ModelReader(OpenFile file, SafetensorsHeader header, uint64_t identity)
    : file_(std::move(file)),
      header_(std::move(header)),
      tensors_(TableOf(header_)),
      identity_(identity) {}

absl::StatusOr<ModelReader> ModelReader::Open(const std::string& path) {
  ASSIGN_OR_RETURN(OpenFile file, OpenRegularFile(path));
  ASSIGN_OR_RETURN(const std::string prefix, ReadPrefix(file));
  absl::StatusOr<SafetensorsHeader> header = DecodeHeader(prefix, file.size_bytes);
  if (!header.ok()) return Annotate(header.status(), path);
  FileIdentity identity;
  identity.MixBytes(prefix);
  identity.MixWord(file.size_bytes);
  // Values are not read for it, so a change of them shows only in the time.
  identity.MixWord(file.changed);
  return ModelReader(std::move(file), *std::move(header), identity.value());
}

absl::Status ModelReader::ReadSlice(const std::string& tensor, int64_t begin_elements,
                                    Values into) const {
  const absl::StatusOr<DType> dtype =
      CheckSlice(tensors_, tensor, begin_elements, static_cast<int64_t>(into.size()));
  if (!dtype.ok()) return Annotate(dtype.status(), file_.path);
  const int64_t at_bytes = header_.data_offset_bytes + header_.tensors.at(tensor).begin_bytes +
                           begin_elements * SizeBytes(*dtype);
  return ReadElements(file_, at_bytes, *dtype, into);
}

absl::Status ModelReader::ReadStored(const std::string& tensor, int64_t begin_elements,
                                     int64_t count, char* into) const {
  const absl::StatusOr<StoredSlice> slice =
      CheckStoredSlice(tensors_, tensor, begin_elements, count);
  if (!slice.ok()) return Annotate(slice.status(), file_.path);
  const int64_t at_bytes =
      header_.data_offset_bytes + header_.tensors.at(tensor).begin_bytes + slice->begin_bytes;
  return ReadBytes(file_, at_bytes, slice->size_bytes, into);
}

}  // namespace tessera
