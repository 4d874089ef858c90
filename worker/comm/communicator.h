// Collective operations among the ranks of one epoch.
//
//   AllGather      rank r gives s_r        everyone gets  s_0 | s_1 | ... | s_{N-1}
//   ReduceScatter  rank r gives N slices   rank r gets    scale * (slice r of 0 + ... + of N-1)
//   AllReduce      rank r gives b_r        everyone gets  scale * (b_0 + b_1 + ... + b_{N-1}), or
//                                                         the largest or smallest of each element
//   Broadcast      the root gives b        everyone gets  b
//
// All ranks call the same operations in the same order with equal sizes, types and scales; a call
// returns once this rank's result is ready and its inputs may be written again. Counts are
// ELEMENTS, sizes BYTES.
//
// Sums run in rank order, in fp32 or, of fp64, in fp64, whatever the elements travel in. Over several
// nodes each node sums in rank order, then the nodes' sums are added in the order of the nodes. Then
// sums are multiplied by `scale`, once, and rounded, once, if they go to a narrower type. So results
// are bit-identical from run to run, from rank to rank and, for the same placement, on every
// communicator (what is too large: kernels/element_reduce.h). An average has AverageScale(size). A pre-scaled sum, as others call it,
// has its factor for `scale` too: they multiply each rank's part before they add it, for their sums
// are in the type that travels and might overflow there; in fp32 that is not so, and multiplying
// once after the sum rounds less.
//
// One thread calls a communicator at a time; Abort may come from any thread. Streams that
// communicate at once use a communicator each.
//
// Every operation can return
//   Aborted             Abort was called, here or on another rank; the message is its reason
//   DeadlineExceeded    some ranks did not come in time: the message names them and the operation
//   FailedPrecondition  the ranks called different operations or sizes: the message names both
//   InvalidArgument     an argument is impossible; nothing was done and the others still wait
// After any but the last the communicator is broken: each call returns the first error, on every
// rank, and a new epoch is needed.
#ifndef TESSERA_WORKER_COMM_COMMUNICATOR_H_
#define TESSERA_WORKER_COMM_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/element_reduce.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"
#include "layout/element_type.h"
#include "layout/shard_map.h"

namespace tessera {

// What makes a sum over so many ranks their average.
constexpr double AverageScale(int size) { return 1.0 / size; }

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual absl::Status Barrier() = 0;

  // `recv` holds size() * bytes_per_rank; `send` may be this rank's part of it (in place).
  virtual absl::Status AllGather(const void* send, void* recv, int64_t bytes_per_rank) = 0;

  // `send` holds size() * count_per_rank elements of `type`: kFp32, kBf16, kFp16; into fp32, eight
  // bits too; into fp64, kFp64. Sums are in the dtype of `recv`, which may be this rank's slice of
  // a `send` of that dtype.
  virtual absl::Status ReduceScatter(const void* send, host::SumOutput recv, int64_t count_per_rank,
                                     ElementType type, double scale) = 0;

  // In place; any type of floating point. A NaN on any rank makes any result NaN. A maximum and a
  // minimum are elements as some rank had them, and have no scale: it is 1.
  virtual absl::Status AllReduce(void* buffer, int64_t count, ElementType type, ReduceOp op,
                                 double scale) = 0;

  virtual absl::Status Broadcast(void* buffer, int64_t bytes, int root) = 0;

  // --- Buffers that all ranks of a host can address ---

  // Rank r's slice is at `base` + r * bytes_per_rank, in a mapping of each host. Waits until
  // every rank has finished writing its own, and brings what ranks of other hosts wrote. On one
  // host it moves no bytes, and the arguments do not matter.
  virtual absl::Status AllGatherMapped(std::byte* base, int64_t bytes_per_rank) = 0;

  // sends_by_rank[r] is where this process sees rank r's whole unsharded buffer; of a rank of
  // another host it is not read. Reduces this rank's slice of all of them into `recv` in one pass
  // (see host::ReduceSlices): the ranks of each host in rank order, then the hosts' sums in theirs.
  // Only the elements in `parts`, which are ascending and disjoint, are read, travel and are
  // written, to recv[element - begin of the slice]. Slices and parts are the same in every call
  // with the same operation on all ranks; slices may differ in size. When it returns, no rank reads
  // this rank's buffer any more.
  virtual absl::Status ReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                           absl::Span<const ElementRange> slices_by_rank,
                                           absl::Span<const ElementRange> parts, DType dtype,
                                           double scale, bool accumulate, host::SumOutput recv,
                                           host::GradientStats* stats) = 0;

  // Ends every wait of every rank, now and later, with Aborted and `reason`. From any thread.
  // Idempotent: the first reason stays.
  virtual void Abort(absl::Status reason) = 0;

  // Bytes that operations of this rank have copied from buffer to buffer so far, also over the
  // network. Reductions read and write but do not copy; what goes to a device and back on its way
  // is not counted again.
  virtual int64_t payload_bytes_copied() const = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_COMMUNICATOR_H_
