#include "client/live/live_entries.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/live/live_info.h"
#include "job/job_codec.h"

namespace tessera {
namespace {

absl::StatusOr<LiveArray> Decode(const v1::LiveTensorInfo& info) {
  switch (info.array()) {
    case v1::LIVE_STATE_ARRAY_PARAMETER:
      return LiveArray::kParameter;
    case v1::LIVE_STATE_ARRAY_FIRST_MOMENT:
      return LiveArray::kFirstMoment;
    case v1::LIVE_STATE_ARRAY_SECOND_MOMENT:
      return LiveArray::kSecondMoment;
    case v1::LIVE_STATE_ARRAY_BUFFER:
      return LiveArray::kBuffer;
    default:
      return absl::DataLossError(absl::StrCat("tensor '", info.name(), "' has an unknown kind"));
  }
}

}  // namespace

v1::LiveStateQuery EncodeLiveQuery(const LiveQuery& query) {
  v1::LiveStateQuery encoded;
  encoded.set_job_id(query.job_id);
  *encoded.mutable_include() = {query.include.begin(), query.include.end()};
  *encoded.mutable_exclude() = {query.exclude.begin(), query.exclude.end()};
  encoded.set_moments(query.moments);
  encoded.set_buffers(query.buffers);
  if (query.dtype.has_value()) encoded.set_dtype(EncodeDType(*query.dtype));
  return encoded;
}

absl::StatusOr<LiveEntry> LiveEntryOf(const v1::LiveTensorInfo& info) {
  LiveEntry entry;
  entry.name = info.name();
  entry.parameter = info.parameter();
  ASSIGN_OR_RETURN(entry.array, Decode(info));
  ASSIGN_OR_RETURN(NamedTensorInfo tensor, TensorInfoOf(info));
  // The shape is the coordinator's word: its product may overflow.
  ASSIGN_OR_RETURN(const int64_t numel, NumelOf(tensor.info));
  entry.dtype = tensor.info.dtype;
  entry.shape = std::move(tensor.info.shape);
  entry.size_bytes = SizeBytes(entry.dtype, numel).value_or(0);
  entry.aliases.assign(info.aliases().begin(), info.aliases().end());
  entry.param_group = info.param_group();
  entry.update_count = info.update_count();
  return entry;
}

}  // namespace tessera
