#include "worker/executor/save/slice_sums.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/crc32.h"

namespace tessera {

absl::StatusOr<std::vector<SliceSums>> GatherSums(const SliceSums& own,
                                                  Communicator* communicator) {
  const uint64_t count = own.size();
  std::vector<uint64_t> counts(communicator->size());
  RETURN_IF_ERROR(communicator->AllGather(&count, counts.data(), sizeof(count)));
  // Ranks have different numbers of slices. The all-gather takes equal sizes, so they are padded.
  const uint64_t most = *std::max_element(counts.begin(), counts.end());
  SliceSums padded = own;
  padded.resize(most);
  std::vector<uint64_t> all(most * counts.size());
  if (most > 0) {
    RETURN_IF_ERROR(communicator->AllGather(padded.data(), all.data(), most * sizeof(padded[0])));
  }
  std::vector<SliceSums> by_rank;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const auto begin = all.begin() + rank * most;
    by_rank.emplace_back(begin, begin + counts[rank]);
  }
  return by_rank;
}

absl::StatusOr<uint32_t> CombineSums(std::vector<SummedSlice> slices, int64_t size_bytes) {
  // Replicas sort next to each other.
  std::sort(slices.begin(), slices.end(), [](const SummedSlice& a, const SummedSlice& b) {
    return std::tie(a.begin_bytes, a.size_bytes) < std::tie(b.begin_bytes, b.size_bytes);
  });
  int64_t at = 0;
  uint32_t crc32 = kCrc32OfNothing;
  for (size_t i = 0; i < slices.size(); ++i) {
    const SummedSlice& slice = slices[i];
    if (i > 0 && slice.begin_bytes == slices[i - 1].begin_bytes &&
        slice.size_bytes == slices[i - 1].size_bytes) {
      // Each replica wrote its own: equal shards must be equal to the bit.
      if (slice.crc32 != slices[i - 1].crc32) return absl::DataLossError("replicas differ");
      continue;
    }
    if (slice.begin_bytes != at)
      return absl::InternalError(absl::StrCat("bytes from ", at, " on are in no slice, or in two"));
    // Sums of adjacent pieces combine to that of the whole, without its bytes.
    crc32 = CombineCrc32(crc32, slice.crc32, slice.size_bytes);
    at += slice.size_bytes;
  }
  // A tensor of which some rank wrote too little must not be published with a sum of the rest.
  if (at != size_bytes)
    return absl::InternalError(absl::StrCat("bytes from ", at, " on are in no slice"));
  return crc32;
}

}  // namespace tessera
