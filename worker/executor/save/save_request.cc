#include "worker/executor/save/save_request.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"
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

absl::Status CheckDType(const v1::SaveRequest& request) {
  switch (request.save_dtype()) {
    case v1::DTYPE_UNSPECIFIED:
      return absl::OkStatus();
    case v1::DTYPE_FP32:
    case v1::DTYPE_BF16:
    case v1::DTYPE_FP16:
      break;
    default:
      return Invalid("a model is saved as fp32, bf16 or fp16, or as it is");
  }
  if (request.is_checkpoint()) return Invalid("a checkpoint is always in full precision");
  return absl::OkStatus();
}

absl::Status CheckParts(const v1::SaveRequest& request) {
  if (request.with_replicas() && !request.in_parts())
    return Invalid("replicas are only saved in parts");
  if (!request.in_parts()) return absl::OkStatus();
  if (!request.is_checkpoint()) return Invalid("a model alone is not saved in parts");
  if (request.max_file_bytes() != 0) return Invalid("a part is one file");
  if (request.keep_newest() != 0) return Invalid("of parts none is removed");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSaveRequest(const v1::SaveRequest& request) {
  if (!request.refusal().empty()) return RefusalOf(request.refusal());
  const std::string& path = request.path();
  if (path.empty() || path[0] != '/' || path.back() == '/') {
    const bool is_folder = request.is_checkpoint() || request.max_file_bytes() > 0;
    return Invalid(absl::StrCat(request.is_checkpoint() ? "checkpoint '" : "model file '",
                                absl::Utf8SafeCEscape(path), "' is not an absolute ",
                                is_folder ? "path of a folder" : "file path"));
  }
  if (request.max_file_bytes() < 0)
    return Invalid(absl::StrCat("files of ", request.max_file_bytes(), " bytes"));
  RETURN_IF_ERROR(CheckDType(request));
  return CheckParts(request);
}

absl::Status CompareRequests(const v1::SaveRequest& request, Communicator* communicator) {
  // Parts may be at another path on each node.
  const uint64_t path = request.in_parts() ? 0 : Crc32(request.path());
  return CompareRequestParts(
      "save",
      {{"whether it is a checkpoint", request.is_checkpoint()},
       {"what asked for it", static_cast<uint64_t>(request.request_number())},
       {"whether it is in the background", request.in_background()},
       {"whether it is in parts", request.in_parts()},
       {"the path", path},
       {"max_file_bytes", static_cast<uint64_t>(request.max_file_bytes())},
       {"the dtype", static_cast<uint64_t>(request.save_dtype())},
       {"whether replicas are saved", request.with_replicas()},
       {"whether one is replaced", request.no_overwrite()}},
      communicator);
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
