// Checksums of whole tensors, made of those of the slices that the ranks hold.
//
//   each rank, of its segments in order:  SliceSums own; own.push_back(crc32) ...
//   all:                                  GatherSums(own) ──► CombineSums ──► a sum for each tensor
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_SLICE_SUMS_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_SLICE_SUMS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace tessera {

using SliceSums = std::vector<uint64_t>;

// What every rank has, by rank. Collective. Errors: the communicator's.
absl::StatusOr<std::vector<SliceSums>> GatherSums(const SliceSums& own, Communicator* communicator);

// A slice of a tensor and its checksum; slices of replicas are there more than once.
struct SummedSlice {
  int64_t begin_bytes = 0;
  int64_t size_bytes = 0;
  uint32_t crc32 = 0;
};

// Of the tensor that they make up, of `size_bytes`.
// Errors: DataLoss  replicas of a slice differ; Internal  they do not cover it just once.
absl::StatusOr<uint32_t> CombineSums(std::vector<SummedSlice> slices, int64_t size_bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_SLICE_SUMS_H_
