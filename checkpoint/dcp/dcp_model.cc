#include "checkpoint/dcp/dcp_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/dcp/box_runs.h"
#include "checkpoint/dcp/torch_tensor.h"
#include "checkpoint/safetensors/element_reader.h"

namespace tessera::dcp {
namespace {

// Where elements go: as values of a type, or as they are stored.
struct Target {
  char* data = nullptr;
  int64_t count = 0;
  std::optional<DType> values;
  int64_t element_bytes = 0;  // Of one, at `data`.

  Target Part(int64_t begin, int64_t part_count) const {
    return {data + begin * element_bytes, part_count, values, element_bytes};
  }
};

int64_t StoredBytes(StoredDType dtype) { return SizeBits(dtype) / 8; }  // PyTorch packs none.

absl::Status ReadInto(const OpenFile& file, int64_t at_bytes, StoredDType dtype,
                      const Target& into) {
  // Without a conversion it is read to its place.
  if (!into.values.has_value())
    return ReadBytes(file, at_bytes, into.count * into.element_bytes, into.data);
  return ReadElements(file, at_bytes, *LayoutDType(dtype),
                      Values(into.data, into.count, *into.values));
}

// A box of a tensor, in an open file.
class ItemReader {
 public:
  ItemReader(const OpenFile& file, const TorchTensor& tensor) : file_(file), tensor_(tensor) {}

  // Elements of the box, row-major.
  absl::Status Read(int64_t begin_elements, const Target& into) {
    if (!tensor_.IsContiguous()) return Pick(begin_elements, into);
    const int64_t at = tensor_.offset_elements + begin_elements;
    return ReadInto(file_, tensor_.storage.begin_bytes + at * StoredBytes(tensor_.dtype),
                    tensor_.dtype, into);
  }

 private:
  // One by one, out of the whole storage, which is read once.
  absl::Status Pick(int64_t begin_elements, const Target& into) {
    if (whole_.empty()) {
      const int64_t numel = tensor_.storage.size_bytes / StoredBytes(tensor_.dtype);
      whole_.resize(numel * into.element_bytes);
      RETURN_IF_ERROR(ReadInto(file_, tensor_.storage.begin_bytes, tensor_.dtype,
                               {whole_.data(), numel, into.values, into.element_bytes}));
    }
    for (int64_t i = 0; i < into.count; ++i) {
      int64_t rest = begin_elements + i, at = tensor_.offset_elements;
      for (size_t d = tensor_.sizes.size(); d-- > 0;) {
        at += rest % tensor_.sizes[d] * tensor_.strides[d];
        rest /= tensor_.sizes[d];
      }
      memcpy(into.data + i * into.element_bytes, whole_.data() + at * into.element_bytes,
             into.element_bytes);
    }
    return absl::OkStatus();
  }

  const OpenFile& file_;
  const TorchTensor& tensor_;
  std::vector<char> whole_;  // Of a tensor that is not contiguous, once it was needed.
};

absl::Status ReadChunk(const std::string& folder, const ChunkedTensor& tensor, const Chunk& chunk,
                       int64_t begin_elements, const Target& into) {
  const int64_t end_elements = begin_elements + into.count;
  // Opened by the first run: a slice that does not touch the chunk opens nothing.
  std::optional<OpenFile> file;
  std::optional<TorchTensor> item;
  std::optional<ItemReader> reader;
  return ForEachRun(
      tensor.info.shape, chunk.offsets, chunk.sizes, begin_elements, end_elements,
      [&](const BoxRun& run) -> absl::Status {
        if (!file.has_value()) {
          ASSIGN_OR_RETURN(file, OpenRegularFile(absl::StrCat(folder, "/", chunk.file)));
          ASSIGN_OR_RETURN(item, LocateTorchTensor(*file, chunk.item));
          // The item says itself what it is. Metadata that disagrees would read past its end.
          if (item->dtype != tensor.info.dtype || item->sizes != chunk.sizes) {
            return absl::InvalidArgumentError(absl::StrCat(
                file->path, ": item at ", chunk.item.begin_bytes, ": not what the metadata says"));
          }
          reader.emplace(*file, *item);
        }
        return reader->Read(run.box_begin_elements,
                            into.Part(run.tensor_begin_elements - begin_elements, run.numel));
      });
}

absl::Status ReadChunks(const std::string& folder, const Metadata& metadata,
                        const std::string& tensor, int64_t begin_elements, const Target& into) {
  const ChunkedTensor& stored = metadata.at(tensor);
  for (const Chunk& chunk : stored.chunks) {
    const absl::Status status = ReadChunk(folder, stored, chunk, begin_elements, into);
    if (!status.ok()) return Annotate(status, absl::StrCat("tensor '", tensor, "'"));
  }
  return absl::OkStatus();
}

// How long each file has to be.
std::map<std::string, int64_t> LeastSizes(const Metadata& metadata) {
  std::map<std::string, int64_t> sizes_bytes;
  for (const auto& [name, tensor] : metadata) {
    for (const Chunk& chunk : tensor.chunks) {
      int64_t& size_bytes = sizes_bytes[chunk.file];
      size_bytes = std::max(size_bytes, chunk.item.begin_bytes + chunk.item.size_bytes);
    }
  }
  return sizes_bytes;
}

}  // namespace

DcpModel::DcpModel(std::string folder, Metadata metadata, uint64_t identity)
    : folder_(std::move(folder)), metadata_(std::move(metadata)), identity_(identity) {
  for (const auto& [name, tensor] : metadata_) tensors_[name] = tensor.info;
}

absl::StatusOr<DcpModel> DcpModel::Open(const std::string& folder) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenRegularFile(absl::StrCat(folder, "/", kMetadataName)));
  ASSIGN_OR_RETURN(const std::string pickle, ReadSmallFile(file, kMaxMetadataBytes));
  absl::StatusOr<Metadata> metadata = DecodeMetadata(pickle);
  if (!metadata.ok()) return Annotate(metadata.status(), file.path);
  FileIdentity identity;
  identity.MixBytes(pickle);
  // Times and sizes, so that a load notices files that change while it reads.
  identity.MixWord(file.changed);
  for (const auto& [name, least_bytes] : LeastSizes(*metadata)) {
    ASSIGN_OR_RETURN(const OpenFile data, OpenRegularFile(absl::StrCat(folder, "/", name)));
    // Found now, and not in the middle of a load.
    if (data.size_bytes < least_bytes) {
      return absl::DataLossError(absl::StrCat(data.path, ": ", data.size_bytes,
                                              " bytes, the metadata says ", least_bytes));
    }
    identity.MixWord(data.size_bytes);
    identity.MixWord(data.changed);
  }
  return DcpModel(folder, *std::move(metadata), identity.value());
}

absl::Status DcpModel::ReadSlice(const std::string& tensor, int64_t begin_elements,
                                 Values into) const {
  const absl::StatusOr<DType> dtype =
      CheckSlice(tensors_, tensor, begin_elements, static_cast<int64_t>(into.size()));
  if (!dtype.ok()) return Annotate(dtype.status(), folder_);
  return ReadChunks(folder_, metadata_, tensor, begin_elements,
                    {static_cast<char*>(into.data()), static_cast<int64_t>(into.size()),
                     into.dtype(), SizeBytes(into.dtype())});
}

absl::Status DcpModel::ReadStored(const std::string& tensor, int64_t begin_elements, int64_t count,
                                  char* into) const {
  const absl::StatusOr<StoredSlice> slice =
      CheckStoredSlice(tensors_, tensor, begin_elements, count);
  if (!slice.ok()) return Annotate(slice.status(), folder_);
  return ReadChunks(folder_, metadata_, tensor, begin_elements,
                    {into, count, std::nullopt, StoredBytes(tensors_.at(tensor).dtype)});
}

}  // namespace tessera::dcp
