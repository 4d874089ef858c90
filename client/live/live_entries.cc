#include "client/live/live_entries.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/live/live_info.h"
#include "job/job_codec.h"
#include "job/live_array_codec.h"

namespace tessera {
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
  const absl::StatusOr<LiveArray> array = DecodeLiveArray(info.array());
  if (!array.ok())
    return absl::DataLossError(absl::StrCat("tensor '", info.name(), "' has an unknown kind"));
  entry.array = *array;
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
