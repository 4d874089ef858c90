#include "client/cli/live_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/storage/storage_path.h"
#include "client/live/live_info.h"

namespace tessera::cli {
namespace {

bool IsFirstMoment(const v1::LiveTensorInfo& info) {
  return info.array() == v1::LIVE_STATE_ARRAY_FIRST_MOMENT;
}

// Whether they are one tensor: all but what the list cannot have.
bool IsSame(const v1::LiveTensorInfo& a, const v1::LiveTensorInfo& b) {
  return a.name() == b.name() && a.parameter() == b.parameter() && a.array() == b.array() &&
         a.dtype() == b.dtype() && a.stored_dtype() == b.stored_dtype() &&
         std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(), b.shape().end());
}

std::string StepTensor(const v1::LiveTensorInfo& info) {
  return absl::StrCat("state.", info.parameter(), ".step");
}

absl::StatusOr<SafetensorsHeader> HeaderOf(const std::vector<v1::LiveTensorInfo>& tensors) {
  std::vector<NamedTensorInfo> infos;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const v1::LiveTensorInfo& info : tensors) {
    ASSIGN_OR_RETURN(NamedTensorInfo tensor, TensorInfoOf(info));
    infos.push_back(std::move(tensor));
    if (IsFirstMoment(info)) infos.push_back({StepTensor(info), {StoredDType::kF32, {}}});
    // Shared storage is not representable in the format; the alias is recorded instead.
    for (const std::string& alias : info.aliases()) metadata[alias] = info.name();
  }
  return PlaceInfos(infos, metadata);
}

// Takes the replies of one call, in order.
class Writer {
 public:
  Writer(std::vector<v1::LiveTensorInfo> tensors, const SafetensorsHeader* header, ModelFile file,
         const LiveProgress& progress)
      : tensors_(std::move(tensors)),
        header_(header),
        file_(std::move(file)),
        progress_(progress) {}

  absl::Status Take(const v1::LiveStateReply& reply) {
    switch (reply.reply_case()) {
      case v1::LiveStateReply::kBegin:
        result_.step = reply.begin().step();
        result_.trained_step = reply.begin().trained_step();
        result_.size_bytes = reply.begin().size_bytes();
        return absl::OkStatus();
      case v1::LiveStateReply::kTensor:
        return TakeTensor(reply.tensor());
      case v1::LiveStateReply::kPiece:
        return TakePiece(reply.piece());
      case v1::LiveStateReply::kSources:
      case v1::LiveStateReply::REPLY_NOT_SET:
        break;
    }
    return absl::OkStatus();  // Of a newer coordinator.
  }

  absl::StatusOr<LiveFile> Finish() {
    RETURN_IF_ERROR(CheckWhole());
    if (next_ != tensors_.size())
      return absl::DataLossError(absl::StrCat("tensor '", tensors_[next_].name(), "' is missing"));
    // On the disk before the file gets its name.
    RETURN_IF_ERROR(file_.Sync());
    result_.num_tensors = static_cast<int64_t>(header_->tensors.size());
    return result_;
  }

 private:
  // Whether the tensor that came last has all of its bytes.
  absl::Status CheckWhole() const {
    if (current_ == nullptr || end_bytes_ == current_->end_bytes - current_->begin_bytes)
      return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("tensor '", current_->name, "' ends after ", end_bytes_, " bytes"));
  }

  absl::Status TakeTensor(const v1::LiveTensorInfo& info) {
    RETURN_IF_ERROR(CheckWhole());
    // The file's header was written from the list, so nothing else has a place in it.
    if (next_ == tensors_.size() || !IsSame(tensors_[next_], info))
      return absl::DataLossError(absl::StrCat("tensor '", info.name(), "' was not listed"));
    ++next_;
    current_ = &header_->tensors.at(info.name());
    end_bytes_ = 0;
    if (!IsFirstMoment(info)) return absl::OkStatus();
    // A float, as in PyTorch's optimizers.
    const auto updates = static_cast<float>(info.update_count());
    char bytes[sizeof(updates)];
    memcpy(bytes, &updates, sizeof(updates));
    return file_.WriteBytes(StepTensor(info), absl::string_view(bytes, sizeof(bytes)));
  }

  absl::Status TakePiece(const v1::LivePiece& piece) {
    if (current_ == nullptr) return absl::DataLossError("a piece without a tensor");
    const int64_t element_bytes = SizeBits(current_->dtype) / 8;
    const auto size_bytes = static_cast<int64_t>(piece.data().size());
    // What was left out would be zeros in the file, which looks like values.
    if (piece.offset_elements() != end_bytes_ / element_bytes) {
      return absl::DataLossError(absl::StrCat("tensor '", current_->name, "': element ",
                                              end_bytes_ / element_bytes, " was left out"));
    }
    if (size_bytes % element_bytes != 0) {
      return absl::DataLossError(absl::StrCat("tensor '", current_->name, "': a piece of ",
                                              size_bytes, " bytes, which ends within an element"));
    }
    RETURN_IF_ERROR(file_.WriteStored(current_->name, piece.offset_elements(), piece.data()));
    end_bytes_ += size_bytes;
    done_bytes_ += size_bytes;
    if (progress_ != nullptr) progress_(done_bytes_, result_.size_bytes);
    return absl::OkStatus();
  }

  const std::vector<v1::LiveTensorInfo> tensors_;
  const SafetensorsHeader* const header_;
  ModelFile file_;
  const LiveProgress progress_;
  LiveFile result_;
  size_t next_ = 0;
  const StoredTensor* current_ = nullptr;
  int64_t end_bytes_ = 0;  // Of the current tensor, so far.
  int64_t done_bytes_ = 0;
};

absl::StatusOr<LiveFile> Write(LiveClient* client, const v1::LiveStateQuery& query,
                               LiveClient::Way way, std::vector<v1::LiveTensorInfo> tensors,
                               const SafetensorsHeader& header, const std::string& path,
                               const LiveProgress& progress) {
  RETURN_IF_ERROR(ModelFile::Create(path, header));
  ASSIGN_OR_RETURN(ModelFile file, ModelFile::Open(path, header));
  Writer writer(std::move(tensors), &header, std::move(file), progress);
  RETURN_IF_ERROR(
      client->Get(query, way, [&](const v1::LiveStateReply& reply) { return writer.Take(reply); }));
  ASSIGN_OR_RETURN(const LiveFile result, writer.Finish());
  RETURN_IF_ERROR(ModelFile::Publish(path));
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LiveClient>> OpenLiveClient(const Endpoint& coordinator) {
  return LiveClient::Create(coordinator.dial(), coordinator.timeout, coordinator.keepalive);
}

absl::StatusOr<LiveFile> SaveLiveState(LiveClient* client, const v1::LiveStateQuery& query,
                                       LiveClient::Way way, const std::string& path,
                                       const LiveProgress& progress) {
  ASSIGN_OR_RETURN(const std::string whole, AbsolutePath(path));
  ASSIGN_OR_RETURN(const std::vector<v1::LiveTensorInfo> tensors, client->List(query));
  ASSIGN_OR_RETURN(const SafetensorsHeader header, HeaderOf(tensors));
  while (true) {
    absl::StatusOr<LiveFile> result = Write(client, query, way, tensors, header, whole, progress);
    if (result.ok()) return result;
    // A partial file has the size of the whole from the beginning.
    ModelFile::Discard(whole);
    if (!absl::IsUnavailable(result.status()) || way == LiveClient::Way::kThroughCoordinator)
      return result;
    // Training may not have waited until all was fetched or copied: what the coordinator hands on
    // is copied before anything is sent.
    way = LiveClient::Way::kThroughCoordinator;
  }
}

absl::StatusOr<std::map<StoredKey, StoredEntry>> ListLiveState(LiveClient* client,
                                                               const v1::LiveStateQuery& query) {
  ASSIGN_OR_RETURN(const std::vector<v1::LiveTensorInfo> tensors, client->List(query));
  std::map<StoredKey, StoredEntry> entries;
  for (const v1::LiveTensorInfo& info : tensors) {
    ASSIGN_OR_RETURN(const NamedTensorInfo tensor, TensorInfoOf(info));
    StoredEntry entry;
    entry.dtype = tensor.info.dtype;
    entry.shape = tensor.info.shape;
    ASSIGN_OR_RETURN(entry.numel, NumelOf(tensor.info));
    entry.size_bytes = SizeBytes(tensor.info.dtype, entry.numel).value_or(0);
    entries[{IsMoment(info) ? "optimizer" : "model", tensor.name}] = entry;
  }
  return entries;
}

}  // namespace tessera::cli
