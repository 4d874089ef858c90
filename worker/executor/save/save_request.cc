#include "worker/executor/save/save_request.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/storage_path.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "job/save_spec_codec.h"
#include "worker/executor/save/request_sums.h"

namespace tessera {
namespace {

absl::Status Invalid(absl::string_view why) { return absl::InvalidArgumentError(why); }

// What a trainer found wrong. One kind of it is told apart, as absl::Status writes it.
absl::Status RefusalOf(absl::string_view refusal) {
  // The trainer writes its status as text.
  if (absl::ConsumePrefix(&refusal, "ALREADY_EXISTS: ")) return absl::AlreadyExistsError(refusal);
  return Invalid(refusal);
}

// Each field of the spec. The path, which differs where others do, comes last.
std::vector<RequestPart> PartsOf(const v1::SaveSpec& spec) {
  std::vector<RequestPart> parts;
  // By reflection, so that an option that is added later is compared as well.
  const google::protobuf::Descriptor& fields = *spec.GetDescriptor();
  for (int i = fields.field_count() - 1; i >= 0; --i) {
    const google::protobuf::FieldDescriptor* field = fields.field(i);
    // Rank 0 alone removes older checkpoints, and parts may be at another path on each node.
    const bool may_differ =
        field->name() == "keep_newest" || (field->name() == "path" && spec.in_parts());
    std::string value;
    if (!may_differ)
      google::protobuf::TextFormat::PrintFieldValueToString(spec, field, /*index=*/-1, &value);
    parts.push_back({std::string(field->name()), Crc32(value)});
  }
  return parts;
}

std::vector<RequestPart> AllPartsOf(const v1::SaveRequest& request) {
  std::vector<RequestPart> parts = PartsOf(request.spec());
  parts.push_back({"what asked for it", static_cast<uint64_t>(request.request_number())});
  return parts;
}

}  // namespace

absl::Status CheckSaveRequest(const v1::SaveRequest& request) {
  if (!request.refusal().empty()) return RefusalOf(request.refusal());
  const v1::SaveSpec& spec = request.spec();
  const std::string& path = spec.path();
  if (!IsAbsolutePath(path) || path.back() == '/') {
    const bool is_folder = !spec.is_model() || spec.max_file_bytes() > 0;
    return Invalid(absl::StrCat(spec.is_model() ? "model file '" : "checkpoint '",
                                absl::Utf8SafeCEscape(path), "' is not an absolute ",
                                is_folder ? "path of a folder" : "file path"));
  }
  return DecodeSaveSpec(spec).status();
}

absl::Status CompareRequests(const v1::SaveRequest& request, Communicator* communicator) {
  return CompareRequestParts("save", AllPartsOf(request), communicator);
}

uint64_t IdOf(const v1::SaveRequest& request) {
  uint32_t sum = kCrc32OfNothing;
  for (const RequestPart& part : AllPartsOf(request)) sum = Crc32(&part.sum, sizeof(part.sum), sum);
  return uint64_t{1} << 32 | sum;
}

absl::StatusOr<NamedTensorInfo> InfoOf(const v1::NamedTensor& tensor) {
  const std::optional<StoredDType> dtype = ParseStoredDType(tensor.dtype());
  if (!dtype.has_value()) {
    return Invalid(absl::StrCat("buffer '", absl::Utf8SafeCEscape(tensor.name()), "' is ",
                                absl::Utf8SafeCEscape(tensor.dtype().substr(0, 40)),
                                ", which files do not have"));
  }
  return NamedTensorInfo{tensor.name(), {*dtype, {tensor.shape().begin(), tensor.shape().end()}}};
}

absl::StatusOr<std::vector<NamedTensorInfo>> InfosOf(
    const google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors) {
  std::vector<NamedTensorInfo> infos;
  for (const v1::NamedTensor& tensor : tensors) {
    ASSIGN_OR_RETURN(NamedTensorInfo info, InfoOf(tensor));
    infos.push_back(std::move(info));
  }
  return infos;
}

absl::StatusOr<google::protobuf::RepeatedPtrField<v1::NamedTensor>> ShareBuffers(
    const v1::SaveRequest& request, Communicator* communicator) {
  v1::SaveRequest specs;
  for (const v1::NamedTensor& buffer : request.buffers()) {
    // Names and shapes alone. Only rank 0 writes the values.
    v1::NamedTensor* spec = specs.add_buffers();
    *spec = buffer;
    spec->clear_values();
  }
  std::string bytes = specs.SerializeAsString();
  uint64_t size = bytes.size();
  // Rank 0's count. The other ranks cannot know it.
  RETURN_IF_ERROR(communicator->Broadcast(&size, sizeof(size), /*root=*/0));
  bytes.resize(size);
  RETURN_IF_ERROR(communicator->Broadcast(bytes.data(), size, /*root=*/0));
  v1::SaveRequest shared;
  // Rank 0 made the bytes, so this is no mistake of the trainer.
  if (!shared.ParseFromString(bytes)) return absl::InternalError("rank 0's buffers are malformed");
  return std::move(*shared.mutable_buffers());
}

}  // namespace tessera
