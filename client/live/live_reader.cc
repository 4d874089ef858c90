#include "tessera/live_reader.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/live/live_client.h"
#include "client/live/live_entries.h"
#include "job/job_codec.h"
#include "proto/live_state.pb.h"

namespace tessera {
namespace {

LiveVersion VersionOf(const v1::LiveStateBegin& begin) {
  LiveVersion version;
  version.generation = begin.generation();
  version.committed_step = begin.step();
  version.trained_step = begin.trained_step();
  version.num_entries = begin.num_tensors();
  version.size_bytes = begin.size_bytes();
  for (const v1::ParamGroup& group : begin.groups())
    version.groups.push_back(DecodeHyperParameters(group));
  return version;
}

// Gives the replies of one call to a sink, and holds them to what they say of each other.
class Taking {
 public:
  explicit Taking(LiveSink* sink) : sink_(sink) {}

  absl::Status Take(const v1::LiveStateReply& reply) {
    switch (reply.reply_case()) {
      case v1::LiveStateReply::kBegin:
        version_ = VersionOf(reply.begin());
        has_begun_ = true;
        return sink_->Begin(version_);
      case v1::LiveStateReply::kTensor:
        return TakeTensor(reply.tensor());
      case v1::LiveStateReply::kPiece:
        return TakePiece(reply.piece());
      case v1::LiveStateReply::kSources:
      case v1::LiveStateReply::REPLY_NOT_SET:
        break;
    }
    // Ignored, so that old clients read from new coordinators.
    return absl::OkStatus();  // Of a newer coordinator.
  }

  absl::StatusOr<LiveVersion> Finish() const {
    RETURN_IF_ERROR(CheckWhole());
    if (has_begun_ && num_entries_ == version_.num_entries) return version_;
    return absl::DataLossError(
        absl::StrCat(num_entries_, " tensors arrived instead of ", version_.num_entries));
  }

 private:
  // Whether the entry that came last has all of its bytes.
  absl::Status CheckWhole() const {
    if (done_bytes_ == entry_.size_bytes) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("tensor '", entry_.name, "' ends after ", done_bytes_, " bytes"));
  }

  absl::Status TakeTensor(const v1::LiveTensorInfo& info) {
    RETURN_IF_ERROR(CheckWhole());
    if (!has_begun_) return absl::DataLossError("a tensor before the beginning");
    ASSIGN_OR_RETURN(entry_, LiveEntryOf(info));
    element_bytes_ = SizeBits(entry_.dtype) / 8;
    done_bytes_ = 0;
    ++num_entries_;
    return sink_->Entry(entry_);
  }

  absl::Status TakePiece(const v1::LivePiece& piece) {
    const auto size_bytes = static_cast<int64_t>(piece.data().size());
    if (num_entries_ == 0) return absl::DataLossError("a piece without a tensor");
    // Pieces follow each other without gaps, so a lost one is noticed.
    if (piece.offset_elements() != done_bytes_ / element_bytes_ ||
        size_bytes % element_bytes_ != 0 || size_bytes > entry_.size_bytes - done_bytes_) {
      return absl::DataLossError(absl::StrCat("tensor '", entry_.name, "': ", size_bytes,
                                              " bytes at element ", piece.offset_elements(),
                                              " after ", done_bytes_, " of ", entry_.size_bytes));
    }
    done_bytes_ += size_bytes;
    return sink_->Chunk(piece.offset_elements(), piece.data());
  }

  LiveSink* const sink_;
  LiveVersion version_;
  bool has_begun_ = false;
  int64_t num_entries_ = 0;
  LiveEntry entry_;  // The last one.
  int64_t element_bytes_ = 1, done_bytes_ = 0;
};

class RoomSink : public LiveSink {
 public:
  explicit RoomSink(LiveReader::Room room) : room_(room) {}

  absl::Status Begin(const LiveVersion&) override { return absl::OkStatus(); }
  absl::Status Entry(const LiveEntry& entry) override {
    ASSIGN_OR_RETURN(into_, room_(entry));
    element_bytes_ = SizeBits(entry.dtype) / 8;
    // Before the first byte is copied.
    if (static_cast<int64_t>(into_.size()) == entry.size_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("tensor '", entry.name, "' of ",
                                                   entry.size_bytes,
                                                   " bytes does not fit memory of ", into_.size()));
  }
  absl::Status Chunk(int64_t offset_elements, absl::string_view bytes) override {
    if (!bytes.empty())
      memcpy(into_.data() + offset_elements * element_bytes_, bytes.data(), bytes.size());
    return absl::OkStatus();
  }

 private:
  const LiveReader::Room room_;
  absl::Span<char> into_;
  int64_t element_bytes_ = 1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LiveReader>> LiveReader::Open(const LiveReaderOptions& options) {
  ASSIGN_OR_RETURN(
      std::unique_ptr<LiveClient> client,
      LiveClient::Create({options.coordinator_address, options.tls, options.insecure_connect},
                         options.list_timeout, options.keepalive));
  return std::unique_ptr<LiveReader>(
      new LiveReader(std::move(client), options.through_coordinator));
}

LiveReader::LiveReader(std::unique_ptr<LiveClient> client, bool through_coordinator)
    : client_(std::move(client)), through_coordinator_(through_coordinator) {}

LiveReader::~LiveReader() = default;

absl::StatusOr<std::vector<LiveEntry>> LiveReader::List(const LiveQuery& query) {
  ASSIGN_OR_RETURN(const std::vector<v1::LiveTensorInfo> infos,
                   client_->List(EncodeLiveQuery(query)));
  std::vector<LiveEntry> entries;
  for (const v1::LiveTensorInfo& info : infos) {
    ASSIGN_OR_RETURN(LiveEntry entry, LiveEntryOf(info));
    entries.push_back(std::move(entry));
  }
  return entries;
}

absl::StatusOr<LiveVersion> LiveReader::Get(const LiveQuery& query, LiveSink* sink) {
  const v1::LiveStateQuery encoded = EncodeLiveQuery(query);
  auto way = through_coordinator_ ? LiveClient::Way::kThroughCoordinator
                                  : LiveClient::Way::kDirectIfPossible;
  while (true) {
    Taking taking(sink);
    bool sink_refused = false;
    const absl::Status status =
        client_->Get(encoded, way, [&](const v1::LiveStateReply& reply) -> absl::Status {
          absl::Status taken = taking.Take(reply);
          // An error of the sink is not one of the way.
          sink_refused = !taken.ok();
          return taken;
        });
    if (status.ok()) return taking.Finish();
    // Training may not have waited until all was fetched or copied: what the coordinator hands on
    // is copied before anything is sent.
    // Once, and only on an error that the other way may not have.
    const bool may_try_again =
        absl::IsUnavailable(status) && !sink_refused && way == LiveClient::Way::kDirectIfPossible;
    if (!may_try_again) return status;
    way = LiveClient::Way::kThroughCoordinator;
  }
}

absl::StatusOr<LiveVersion> LiveReader::Read(const LiveQuery& query, Room room) {
  RoomSink sink(room);
  return Get(query, &sink);
}

}  // namespace tessera
