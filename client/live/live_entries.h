// Queries and entries of live_reader.h as the wire has them. Pure; thread-safe.
#ifndef TESSERA_CLIENT_LIVE_LIVE_ENTRIES_H_
#define TESSERA_CLIENT_LIVE_LIVE_ENTRIES_H_

#include "absl/status/statusor.h"
#include "proto/live_state.pb.h"
#include "tessera/live_reader.h"

namespace tessera {

v1::LiveStateQuery EncodeLiveQuery(const LiveQuery& query);
// Errors: DataLoss, InvalidArgument  it is of a kind, or in a dtype, that this build does not know.
absl::StatusOr<LiveEntry> LiveEntryOf(const v1::LiveTensorInfo& info);

}  // namespace tessera

#endif  // TESSERA_CLIENT_LIVE_LIVE_ENTRIES_H_
