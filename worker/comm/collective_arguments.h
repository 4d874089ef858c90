// Checks of what callers pass to a Communicator, the same for each back-end. Pure; thread-safe.
// Errors of all: InvalidArgument, naming the argument.
#ifndef TESSERA_WORKER_COMM_COLLECTIVE_ARGUMENTS_H_
#define TESSERA_WORKER_COMM_COLLECTIVE_ARGUMENTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/element_reduce.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"
#include "layout/element_type.h"
#include "layout/shard_map.h"

namespace tessera {

absl::Status CheckAllGather(const void* send, const void* recv, int64_t bytes_per_rank, int size);
absl::Status CheckReduceScatter(const void* send, host::SumOutput recv, int64_t count_per_rank,
                                ElementType type, int size);
absl::Status CheckAllReduce(const void* buffer, int64_t count, ElementType type, ReduceOp op,
                            double scale);
absl::Status CheckBroadcast(const void* buffer, int64_t bytes, int root, int size);
absl::Status CheckReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                      absl::Span<const ElementRange> slices_by_rank,
                                      absl::Span<const ElementRange> parts, DType dtype,
                                      host::SumOutput recv, int rank, int size);
absl::Status CheckAllGatherMapped(const void* base, int64_t bytes_per_rank, int size);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_COLLECTIVE_ARGUMENTS_H_
