#include "checkpoint/dcp/dcp_model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/dcp/box_runs.h"
#include "checkpoint/dcp/torch_tensor.h"
#include "checkpoint/element_reader.h"

namespace tessera::dcp {
namespace {

// Elements [begin, begin + count) of values.
Values Part(Values values, int64_t begin, int64_t count) {
  return Values(static_cast<char*>(values.data()) + begin * SizeBytes(values.dtype()), count,
                values.dtype());
}

// One value; both are of one type.
void CopyOne(const Values& from, int64_t from_element, const Values& into, int64_t into_element) {
  if (into.dtype() == DType::kFp64) {
    into.as<double>()[into_element] = from.as<double>()[from_element];
  } else {
    into.as<float>()[into_element] = from.as<float>()[from_element];
  }
}

// A box of a tensor, in an open file.
class ItemReader {
 public:
  ItemReader(const OpenFile& file, const TorchTensor& tensor, DType dtype)
      : file_(file), tensor_(tensor), dtype_(dtype) {}

  // Elements of the box, row-major.
  absl::Status Read(int64_t begin_elements, Values into) {
    if (!tensor_.IsContiguous()) return Pick(begin_elements, into);
    return ReadElements(file_,
                        tensor_.storage.begin_bytes +
                            (tensor_.offset_elements + begin_elements) * SizeBytes(dtype_),
                        dtype_, into);
  }

 private:
  // One by one, out of the whole storage, which is read once.
  absl::Status Pick(int64_t begin_elements, const Values& into) {
    if (whole_.empty()) {
      const int64_t numel = tensor_.storage.size_bytes / SizeBytes(dtype_);
      whole_.resize(numel * SizeBytes(into.dtype()));
      RETURN_IF_ERROR(ReadElements(file_, tensor_.storage.begin_bytes, dtype_,
                                   Values(whole_.data(), numel, into.dtype())));
    }
    const Values whole(whole_.data(), static_cast<int64_t>(whole_.size()) / SizeBytes(into.dtype()),
                       into.dtype());
    for (int64_t i = 0; i < static_cast<int64_t>(into.size()); ++i) {
      int64_t rest = begin_elements + i, at = tensor_.offset_elements;
      for (size_t d = tensor_.sizes.size(); d-- > 0;) {
        at += rest % tensor_.sizes[d] * tensor_.strides[d];
        rest /= tensor_.sizes[d];
      }
      CopyOne(whole, at, into, i);
    }
    return absl::OkStatus();
  }

  const OpenFile& file_;
  const TorchTensor& tensor_;
  const DType dtype_;
  std::vector<char> whole_;  // Of a tensor that is not contiguous, once it was needed.
};

absl::Status ReadChunk(const std::string& folder, const ChunkedTensor& tensor, const Chunk& chunk,
                       DType dtype, int64_t begin_elements, Values into) {
  const int64_t end_elements = begin_elements + static_cast<int64_t>(into.size());
  std::optional<OpenFile> file;
  std::optional<TorchTensor> item;
  std::optional<ItemReader> reader;
  return ForEachRun(
      tensor.info.shape, chunk.offsets, chunk.sizes, begin_elements, end_elements,
      [&](const BoxRun& run) -> absl::Status {
        if (!file.has_value()) {
          ASSIGN_OR_RETURN(file, OpenRegularFile(absl::StrCat(folder, "/", chunk.file)));
          ASSIGN_OR_RETURN(item, LocateTorchTensor(*file, chunk.item));
          if (item->dtype != tensor.info.dtype || item->sizes != chunk.sizes) {
            return absl::InvalidArgumentError(absl::StrCat(
                file->path, ": item at ", chunk.item.begin_bytes, ": not what the metadata says"));
          }
          reader.emplace(*file, *item, dtype);
        }
        return reader->Read(run.box_begin_elements,
                            Part(into, run.tensor_begin_elements - begin_elements, run.numel));
      });
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
  identity.MixWord(file.changed);
  for (const auto& [name, least_bytes] : LeastSizes(*metadata)) {
    ASSIGN_OR_RETURN(const OpenFile data, OpenRegularFile(absl::StrCat(folder, "/", name)));
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
  const ChunkedTensor& stored = metadata_.at(tensor);
  for (const Chunk& chunk : stored.chunks) {
    const absl::Status status = ReadChunk(folder_, stored, chunk, *dtype, begin_elements, into);
    if (!status.ok()) return Annotate(status, absl::StrCat("tensor '", tensor, "'"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::dcp
