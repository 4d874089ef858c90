#include "worker/engine/addressable_state.h"

namespace tessera {

absl::Status InPlaceState::BeginWrite(int64_t step, absl::Span<const StateArray> arrays) {
  for (const ShardSegment& segment : optimizer_.segments()) {
    for (const StateArray array : arrays) optimizer_.CopyFromVersionBefore(array, segment, step);
  }
  return absl::OkStatus();
}

}  // namespace tessera
