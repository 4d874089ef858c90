#include "worker/comm/loopback/loopback_communicator.h"

#include <cstring>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/collective_arguments.h"
#include "worker/comm/reduce_parts.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<LoopbackCommunicator>> LoopbackCommunicator::Create(int rank,
                                                                                   int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", size));
  }
  return absl::WrapUnique(new LoopbackCommunicator(rank, size));
}

absl::Status LoopbackCommunicator::CheckNotAborted() {
  absl::MutexLock lock(&mu_);
  return aborted_;
}

absl::Status LoopbackCommunicator::Barrier() { return CheckNotAborted(); }

absl::Status LoopbackCommunicator::AllGather(const void* send, void* recv, int64_t bytes_per_rank) {
  RETURN_IF_ERROR(CheckAllGather(send, recv, bytes_per_rank, size_));
  RETURN_IF_ERROR(CheckNotAborted());
  for (int r = 0; r < size_; ++r) {
    char* to = static_cast<char*>(recv) + r * bytes_per_rank;
    if (to == send || bytes_per_rank == 0) continue;
    std::memcpy(to, send, static_cast<size_t>(bytes_per_rank));
    payload_bytes_copied_ += bytes_per_rank;
  }
  return absl::OkStatus();
}

absl::Status LoopbackCommunicator::ReduceScatter(const void* send, host::SumOutput recv,
                                                 int64_t count_per_rank, ElementType type,
                                                 double scale) {
  RETURN_IF_ERROR(CheckReduceScatter(send, recv, count_per_rank, type, size_));
  RETURN_IF_ERROR(CheckNotAborted());
  // The one slice counts `size_` times and is added as often, so that it rounds as with real peers.
  const std::vector<const void*> slices(
      size_, static_cast<const char*>(send) + rank_ * count_per_rank * SizeBytes(type));
  host::SumElements(slices, type, count_per_rank, scale, false, recv, nullptr);
  return absl::OkStatus();
}

absl::Status LoopbackCommunicator::AllReduce(void* buffer, int64_t count, ElementType type,
                                             ReduceOp op, double scale) {
  RETURN_IF_ERROR(CheckAllReduce(buffer, count, type, op, scale));
  RETURN_IF_ERROR(CheckNotAborted());
  // As often as there would be ranks: sums, and their rounding, are those of equal ranks.
  const std::vector<const void*> inputs(size_, buffer);
  host::CombineElements(inputs, type, op, scale, count, buffer);
  return absl::OkStatus();
}

absl::Status LoopbackCommunicator::Broadcast(void* buffer, int64_t bytes, int root) {
  RETURN_IF_ERROR(CheckBroadcast(buffer, bytes, root, size_));
  return CheckNotAborted();
}

absl::Status LoopbackCommunicator::AllGatherMapped(std::byte*, int64_t) {
  return CheckNotAborted();
}

absl::Status LoopbackCommunicator::ReduceScatterMapped(
    absl::Span<const void* const> sends_by_rank, absl::Span<const ElementRange> slices_by_rank,
    absl::Span<const ElementRange> parts, DType dtype, double scale, bool accumulate,
    host::SumOutput recv, host::GradientStats* stats) {
  RETURN_IF_ERROR(
      CheckReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, recv, rank_, size_));
  const ElementRange slice = slices_by_rank[rank_];
  RETURN_IF_ERROR(CheckNotAborted());
  std::vector<const void*> inputs(sends_by_rank.size());
  HostRankKernels kernels;
  return ReduceParts(
      &kernels, {parts, slice, dtype, scale, accumulate}, &inputs,
      [&](size_t r, const SlicePart& part) {
        return static_cast<const char*>(sends_by_rank[r]) + part.range.begin * SizeBytes(dtype);
      },
      [&](const SlicePart& part) { return recv.At(part.range.begin - slice.begin); }, stats);
}

void LoopbackCommunicator::Abort(absl::Status reason) {
  absl::MutexLock lock(&mu_);
  // The first reason stays, as with real peers.
  if (!aborted_.ok()) return;
  aborted_ = absl::AbortedError(absl::StrCat("rank ", rank_, ": ", reason.message()));
}

}  // namespace tessera
