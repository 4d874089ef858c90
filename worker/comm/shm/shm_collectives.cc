// The operations of ShmCommunicator.
//
// Why one phase per chunk is enough: a half is written again two chunks later. To enter the phase
// in between, every rank had finished reading it.
#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/comm/collective_arguments.h"
#include "worker/comm/operation_digest.h"
#include "worker/comm/reduce_parts.h"
#include "worker/comm/shm/process_memory.h"
#include "worker/comm/shm/shm_communicator.h"

namespace tessera {
namespace {

// Up to this size every rank of an AllReduce reduces everything; above, each its part.
constexpr int64_t kSmallAllReduceBytes = 16 << 10;

// From this size on it pays to ask the kernel for the others' memory, among so few ranks: more of
// them read what is staged out of the caches, and that again pays for the second copy.
constexpr int64_t kMinReadBytes = 64 << 10;
constexpr int kMaxReaders = 3;

const char* Bytes(const void* pointer) { return static_cast<const char*>(pointer); }

}  // namespace

char* ShmCommunicator::Half(int rank, int half) const {
  return region_.staging(options_.channel, rank) + half * half_bytes();
}

void ShmCommunicator::CopyPayload(void* to, const void* from, int64_t bytes) {
  if (to == from || bytes == 0) return;
  std::memcpy(to, from, static_cast<size_t>(bytes));
  // Relaxed: a number for displays, by which nothing is published.
  payload_bytes_copied_.fetch_add(bytes, std::memory_order_relaxed);
}

absl::Status ShmCommunicator::Barrier() { return Phase(OperationDigest(Operation::kBarrier, {})); }

absl::Status ShmCommunicator::AllGatherMapped(std::byte*, int64_t) {
  return Phase(OperationDigest(Operation::kAllGatherMapped, {}));
}

absl::Status ShmCommunicator::AllGather(const void* send, void* recv, int64_t bytes_per_rank) {
  // Arguments first, here and below: what is refused has told the others nothing, who still wait.
  RETURN_IF_ERROR(CheckAllGather(send, recv, bytes_per_rank, options_.size));
  const uint32_t digest = OperationDigest(Operation::kAllGather, {bytes_per_rank});
  char* to = static_cast<char*>(recv);
  const bool reads = reads_memory_ && options_.size > 1 && options_.size <= kMaxReaders;
  if (reads && bytes_per_rank >= kMinReadBytes) return ReadPeers(send, to, bytes_per_rank, digest);
  int64_t begin = 0;
  // At least one round: of no bytes, too, the ranks meet.
  do {
    const int64_t chunk = std::min(bytes_per_rank - begin, half_bytes());
    if (options_.size > 1) CopyPayload(Half(options_.rank, half_), Bytes(send) + begin, chunk);
    RETURN_IF_ERROR(Phase(digest));
    for (int r = 0; r < options_.size; ++r) {
      const char* from = r == options_.rank ? Bytes(send) + begin : Half(r, half_);
      CopyPayload(to + r * bytes_per_rank + begin, from, chunk);
    }
    half_ = 1 - half_;
    begin += chunk;
  } while (begin < bytes_per_rank);
  return absl::OkStatus();
}

absl::Status ShmCommunicator::ReadPeers(const void* send, char* recv, int64_t bytes_per_rank,
                                        uint32_t digest) {
  RankSlot* mine = region_.slot(options_.channel, options_.rank);
  // Phase publishes it: the peers' acquire of `arrived` makes it visible.
  mine->offered.store(reinterpret_cast<uint64_t>(send), std::memory_order_relaxed);
  RETURN_IF_ERROR(Phase(digest));
  CopyPayload(recv + options_.rank * bytes_per_rank, send, bytes_per_rank);
  // Each begins with the next rank's, so that no two read the same memory at once.
  for (int i = 1; i < options_.size; ++i) {
    const int r = (options_.rank + i) % options_.size;
    const RankSlot* slot = region_.slot(options_.channel, r);
    // A wrong address only makes the kernel's read fail. It is never dereferenced here.
    const absl::Status read = ReadProcessMemory(slot->process.load(std::memory_order_relaxed),
                                                slot->offered.load(std::memory_order_relaxed),
                                                recv + r * bytes_per_rank, bytes_per_rank);
    if (!read.ok()) return BreakUnread(r, read);
    payload_bytes_copied_.fetch_add(bytes_per_rank, std::memory_order_relaxed);
  }
  return Phase(digest);  // Then all have read what this rank sends.
}

absl::Status ShmCommunicator::BreakUnread(int peer, const absl::Status& read) {
  const absl::Status error = Annotate(read, absl::StrCat("rank ", Named(peer)));
  if (!absl::IsNotFound(read)) return Break(error);
  // It has died. Its supervisor aborts the epoch and says why. A phase would not wait for that: the
  // dead rank may have entered this one.
  const absl::Status aborted = WaitUntil(
      &region_.slot(options_.channel, peer)->arrived, [](uint32_t) { return false; }, abort_,
      SteadyNow() + timeout_, policy_);
  return Break(absl::IsAborted(aborted) ? aborted : error);
}

absl::Status ShmCommunicator::ReduceScatter(const void* send, host::SumOutput recv,
                                            int64_t count_per_rank, ElementType type,
                                            double scale) {
  RETURN_IF_ERROR(CheckReduceScatter(send, recv, count_per_rank, type, options_.size));
  const uint32_t digest = OperationDigest(
      Operation::kReduceScatter,
      {count_per_rank, type.number(), static_cast<int64_t>(recv.dtype), DigestOf(scale)});
  const int64_t element_bytes = SizeBytes(type);
  // Whole lines, so that pieces of two owners share none. RequiredBytes leaves at least one for
  // each.
  const int64_t piece_bytes = half_bytes() / options_.size / kShmLineBytes * kShmLineBytes;
  int64_t begin = 0;
  do {
    const int64_t chunk = std::min(count_per_rank - begin, piece_bytes / element_bytes);
    const auto piece_of = [&](int r) {
      return Bytes(send) + (r * count_per_rank + begin) * element_bytes;
    };
    for (int r = 0; r < options_.size; ++r) {
      if (r == options_.rank) continue;
      CopyPayload(Half(options_.rank, half_) + r * piece_bytes, piece_of(r), chunk * element_bytes);
    }
    RETURN_IF_ERROR(Phase(digest));
    for (int r = 0; r < options_.size; ++r) {
      sources_[r] = r == options_.rank ? piece_of(r) : Half(r, half_) + options_.rank * piece_bytes;
    }
    // In rank order, on whichever rank: the bits do not depend on who came first (docs/adr/0014).
    host::SumElements(sources_, type, chunk, scale, false, recv.At(begin), nullptr);
    half_ = 1 - half_;
    begin += chunk;
  } while (begin < count_per_rank);
  return absl::OkStatus();
}

absl::Status ShmCommunicator::AllReduce(void* buffer, int64_t count, ElementType type, ReduceOp op,
                                        double scale) {
  RETURN_IF_ERROR(CheckAllReduce(buffer, count, type, op, scale));
  const uint32_t digest = OperationDigest(
      Operation::kAllReduce, {count, type.number(), static_cast<int64_t>(op), DigestOf(scale)});
  const int64_t element_bytes = SizeBytes(type);
  int64_t begin = 0;
  do {
    const int64_t chunk = std::min(count - begin, half_bytes() / element_bytes);
    char* part = static_cast<char*>(buffer) + begin * element_bytes;
    RETURN_IF_ERROR(AllReduceChunk(part, chunk, {type, op, scale}, digest));
    begin += chunk;
  } while (begin < count);
  return absl::OkStatus();
}

absl::Status ShmCommunicator::AllReduceChunk(char* buffer, int64_t count,
                                             const Combination& combination, uint32_t digest) {
  const int64_t element_bytes = SizeBytes(combination.type);
  const auto combine = [&](int64_t num_elements, char* to) {
    host::CombineElements(sources_, combination.type, combination.op, combination.scale,
                          num_elements, to);
  };
  if (options_.size > 1) CopyPayload(Half(options_.rank, half_), buffer, count * element_bytes);
  RETURN_IF_ERROR(Phase(digest));
  if (options_.size == 1) {
    sources_[0] = buffer;
    combine(count, buffer);
    return absl::OkStatus();
  }
  // One phase instead of two: each rank adds everything by itself, in the same order.
  if (count * element_bytes <= kSmallAllReduceBytes) {
    for (int r = 0; r < options_.size; ++r) sources_[r] = Half(r, half_);
    combine(count, buffer);
    half_ = 1 - half_;
    return absl::OkStatus();
  }
  // Each rank reduces its part into its other half; that one is read until the next phase, so the
  // next chunk writes this half again.
  const int64_t elements_per_line = kShmLineBytes / element_bytes;
  // Rounded up to whole lines: later shares may be smaller or empty, and the last takes the rest.
  const int64_t share = (count / options_.size / elements_per_line + 1) * elements_per_line;
  const auto begin_of = [&](int r) { return std::min(count, r * share); };
  const auto size_of = [&](int r) {
    return r + 1 == options_.size ? count - begin_of(r) : begin_of(r + 1) - begin_of(r);
  };
  const int64_t begin_bytes = begin_of(options_.rank) * element_bytes;
  for (int r = 0; r < options_.size; ++r) sources_[r] = Half(r, half_) + begin_bytes;
  combine(size_of(options_.rank), Half(options_.rank, 1 - half_) + begin_bytes);
  RETURN_IF_ERROR(Phase(digest));
  for (int r = 0; r < options_.size; ++r) {
    const int64_t offset_bytes = begin_of(r) * element_bytes;
    CopyPayload(buffer + offset_bytes, Half(r, 1 - half_) + offset_bytes,
                size_of(r) * element_bytes);
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::Broadcast(void* buffer, int64_t bytes, int root) {
  RETURN_IF_ERROR(CheckBroadcast(buffer, bytes, root, options_.size));
  const uint32_t digest = OperationDigest(Operation::kBroadcast, {bytes, root});
  const bool is_root = options_.rank == root;
  int64_t begin = 0;
  do {
    const int64_t chunk = std::min(bytes - begin, half_bytes());
    char* part = static_cast<char*>(buffer) + begin;
    if (is_root && options_.size > 1) CopyPayload(Half(root, half_), part, chunk);
    RETURN_IF_ERROR(Phase(digest));
    if (!is_root) CopyPayload(part, Half(root, half_), chunk);
    half_ = 1 - half_;
    begin += chunk;
  } while (begin < bytes);
  return absl::OkStatus();
}

absl::Status ShmCommunicator::ReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                                  absl::Span<const ElementRange> slices_by_rank,
                                                  absl::Span<const ElementRange> parts, DType dtype,
                                                  double scale, bool accumulate,
                                                  host::SumOutput recv,
                                                  host::GradientStats* stats) {
  RETURN_IF_ERROR(CheckReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, recv,
                                           options_.rank, options_.size));
  // Slices and parts follow from the job's layout: the digest has only what a caller chooses.
  const ElementRange slice = slices_by_rank[options_.rank];
  const uint32_t digest =
      OperationDigest(Operation::kReduceScatterMapped,
                      {static_cast<int64_t>(dtype), static_cast<int64_t>(recv.dtype)});
  // All gradients are complete once every rank is in this phase.
  RETURN_IF_ERROR(Phase(digest));
  const absl::Status reduced = ReduceParts(
      kernels(), {parts, slice, dtype, scale, accumulate}, &sources_,
      [&](size_t r, const SlicePart& part) {
        return Bytes(sends_by_rank[r]) + part.range.begin * SizeBytes(dtype);
      },
      [&](const SlicePart& part) { return recv.At(part.range.begin - slice.begin); }, stats);
  // The others are on their way into the second phase, which would not come.
  if (!reduced.ok()) return Break(reduced);
  // A peer reads this rank's gradient until it enters this phase. The caller may overwrite it
  // after.
  return Phase(digest);
}

}  // namespace tessera
