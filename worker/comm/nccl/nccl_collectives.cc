// The operations of NcclCommunicator.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/narrow_floats.h"
#include "worker/comm/collective_arguments.h"
#include "worker/comm/nccl/nccl_communicator.h"
#include "worker/comm/operation_digest.h"

namespace tessera {
namespace {

const char* At(const void* base, int64_t bytes) { return static_cast<const char*>(base) + bytes; }
char* At(void* base, int64_t bytes) { return static_cast<char*>(base) + bytes; }

// A number as the library takes it with elements of some type.
using Scalar = std::array<char, sizeof(double)>;

template <typename T>
Scalar BytesOf(T value) {
  Scalar scalar = {};
  std::memcpy(scalar.data(), &value, sizeof(value));
  return scalar;
}

// Returns whether the type has it. Of fp32 and fp64 it is rounded, as everywhere.
template <typename T>
bool NarrowTo(double value, Scalar* scalar) {
  T rounded;
  narrow::Narrow(static_cast<float>(value), &rounded);
  *scalar = BytesOf(rounded);
  return narrow::Widen(rounded) == static_cast<float>(value);
}

bool MakeScalar(ElementType type, double value, Scalar* scalar) {
  if (type == Fp8Format::kE4M3) return NarrowTo<narrow::Fp8E4M3>(value, scalar);
  if (type == Fp8Format::kE5M2) return NarrowTo<narrow::Fp8E5M2>(value, scalar);
  if (type == DType::kBf16) return NarrowTo<narrow::Bf16>(value, scalar);
  if (type == DType::kFp16) return NarrowTo<narrow::Fp16>(value, scalar);
  *scalar = type == DType::kFp64 ? BytesOf(value) : BytesOf(static_cast<float>(value));
  return true;
}

// Type for moving elements without reading them: so libraries without FP8 can move FP8 too.
NcclType MovedAs(ElementType type) { return type.is_fp8() ? NcclType::kUint8 : NcclTypeOf(type); }

}  // namespace

// A run that is sent to or received from a peer.
struct NcclCommunicator::Move {
  bool is_send = false;
  const void* from = nullptr;
  void* to = nullptr;
  int64_t count = 0;
  int peer = 0;
};

NcclRank::Group NcclCommunicator::Exchange(std::vector<Move> moves, NcclType type) const {
  return [nccl = options_.nccl, moves = std::move(moves), type](NcclComm* comm,
                                                                CudaStreamHandle* stream) {
    for (const Move& move : moves) {
      // Within a group "in progress" is no error: the state is polled after the group's end.
      const NcclResult result =
          move.is_send ? nccl->Send(move.from, move.count, type, move.peer, comm, stream)
                       : nccl->Recv(move.to, move.count, type, move.peer, comm, stream);
      if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) return result;
    }
    return NcclResult::kSuccess;
  };
}

struct NcclCommunicator::MappedSum {
  const void* own_send;
  absl::Span<const ElementRange> slices;
  absl::Span<const ElementRange> parts;
  DType dtype;
  double scale;
  bool accumulate;
};

absl::Status NcclCommunicator::Barrier() { return Agree(OperationDigest(Operation::kBarrier, {})); }

absl::Status NcclCommunicator::AllGather(const void* send, void* recv, int64_t bytes_per_rank) {
  // Before Agree: a refused argument has told the others nothing, so the communicator stays usable.
  RETURN_IF_ERROR(CheckAllGather(send, recv, bytes_per_rank, size()));
  RETURN_IF_ERROR(Agree(OperationDigest(Operation::kAllGather, {bytes_per_rank})));
  return Finish(Gather(send, recv, bytes_per_rank));
}

absl::Status NcclCommunicator::AllGatherMapped(std::byte* base, int64_t bytes_per_rank) {
  RETURN_IF_ERROR(CheckAllGatherMapped(base, bytes_per_rank, size()));
  RETURN_IF_ERROR(Agree(OperationDigest(Operation::kAllGatherMapped, {bytes_per_rank})));
  if (bytes_per_rank == 0) return absl::OkStatus();
  return Finish(Gather(base + rank() * bytes_per_rank, base, bytes_per_rank));
}

absl::Status NcclCommunicator::Gather(const void* send, void* recv, int64_t bytes_per_rank) {
  if (bytes_per_rank == 0) return absl::OkStatus();
  payload_bytes_copied_ += bytes_per_rank * size();
  NcclApi* nccl = options_.nccl;
  RETURN_IF_ERROR(nccl_->Issue("ncclAllGather", [=](NcclComm* comm, CudaStreamHandle* stream) {
    return nccl->AllGather(send, recv, bytes_per_rank, NcclType::kUint8, comm, stream);
  }));
  return nccl_->Await("ncclAllGather");
}

absl::Status NcclCommunicator::Broadcast(void* buffer, int64_t bytes, int root) {
  RETURN_IF_ERROR(CheckBroadcast(buffer, bytes, root, size()));
  RETURN_IF_ERROR(Agree(OperationDigest(Operation::kBroadcast, {bytes, root})));
  if (bytes == 0) return absl::OkStatus();
  payload_bytes_copied_ += bytes;
  NcclApi* nccl = options_.nccl;
  RETURN_IF_ERROR(
      Finish(nccl_->Issue("ncclBroadcast", [=](NcclComm* comm, CudaStreamHandle* stream) {
        return nccl->Broadcast(buffer, buffer, bytes, NcclType::kUint8, root, comm, stream);
      })));
  return Finish(nccl_->Await("ncclBroadcast"));
}

NcclCommunicator::Scaling NcclCommunicator::ScalingOf(ElementType type, double scale) const {
  // One answer on all ranks (LibrarySumsFp8), or some would sum by kernel and some by the library.
  if (type.is_fp8() && !library_sums_fp8_) return Scaling::kByKernel;
  if (scale == 1) return Scaling::kNone;
  // The library would round it: in FP8 a third is 3% too large.
  Scalar scalar;
  if (!MakeScalar(type, scale, &scalar)) return Scaling::kByKernel;
  return scale == AverageScale(size()) ? Scaling::kAverage : Scaling::kPreScaled;
}

NcclRank::Group NcclCommunicator::Scaled(ElementType type, double scale, SumCall sum) const {
  const Scaling scaling = ScalingOf(type, scale);
  Scalar scalar;
  MakeScalar(type, scale, &scalar);
  return [nccl = options_.nccl, type, scaling, scalar, sum = std::move(sum)](
             NcclComm* comm, CudaStreamHandle* stream) {
    if (scaling != Scaling::kPreScaled) {
      return sum(scaling == Scaling::kAverage ? NcclOp::kAverage : NcclOp::kSum, comm, stream);
    }
    NcclOp op = NcclOp::kSum;
    const NcclResult made = nccl->RedOpCreatePreMulSum(&op, scalar.data(), NcclTypeOf(type),
                                                       NcclScalar::kHostImmediate, comm);
    if (made != NcclResult::kSuccess) return made;
    const NcclResult summed = sum(op, comm, stream);
    const NcclResult destroyed = nccl->RedOpDestroy(op, comm);  // The call has all it needs of it.
    const bool well = summed == NcclResult::kSuccess || summed == NcclResult::kInProgress;
    return well ? destroyed : summed;
  };
}

absl::Status NcclCommunicator::ReduceScatter(const void* send, host::SumOutput recv,
                                             int64_t count_per_rank, ElementType type,
                                             double scale) {
  RETURN_IF_ERROR(CheckReduceScatter(send, recv, count_per_rank, type, size()));
  RETURN_IF_ERROR(Agree(OperationDigest(
      Operation::kReduceScatter,
      {count_per_rank, type.number(), static_cast<int64_t>(recv.dtype), DigestOf(scale)})));
  if (count_per_rank == 0) return absl::OkStatus();
  // Only on request: the library's order of summands is its own, so bits may differ
  // (docs/adr/0027).
  if (options_.library_sums && type == recv.dtype) {
    return Finish(SumByLibrary(send, recv.data, count_per_rank, recv.dtype, scale));
  }
  return Finish(SumByKernel(send, recv, count_per_rank, type, scale));
}

absl::Status NcclCommunicator::SumByLibrary(const void* send, void* recv, int64_t count,
                                            DType dtype, double scale) {
  const auto sum = [nccl = options_.nccl, send, recv, count, dtype](NcclOp op, NcclComm* comm,
                                                                    CudaStreamHandle* stream) {
    return nccl->ReduceScatter(send, recv, count, NcclTypeOf(dtype), op, comm, stream);
  };
  RETURN_IF_ERROR(nccl_->Issue("ncclReduceScatter", Scaled(dtype, scale, sum)));
  return nccl_->Await("ncclReduceScatter");
}

// Piece by piece, so that the staging stays small; the stream keeps the pieces apart.
absl::Status NcclCommunicator::SumByKernel(const void* send, host::SumOutput recv, int64_t count,
                                           ElementType type, double scale) {
  const int64_t element_bytes = SizeBytes(type);
  const int64_t peers = std::max(size() - 1, 1);
  // One element at least, however small the staging.
  const int64_t piece = std::min(
      count,
      std::max<int64_t>(1, (options_.staging_bytes / peers - kSlotAlignmentBytes) / element_bytes));
  const int64_t slot_bytes = SlotBytes(piece * element_bytes);
  RETURN_IF_ERROR(EnsureStaging(slot_bytes * (size() - 1)));
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t now = std::min(piece, count - begin);
    std::vector<Move> moves;
    for (int r = 0, slot = 0; r < size(); ++r) {
      // The own slice is read where it is. Others' are received into slots, in rank order.
      const char* slice = At(send, (r * count + begin) * element_bytes);
      sources_[r] = slice;
      if (r == rank()) continue;
      char* to = At(staging_.data(), slot_bytes * slot++);
      moves.push_back({true, slice, nullptr, now, r});
      moves.push_back({false, nullptr, to, now, r});
      sources_[r] = to;
    }
    payload_bytes_copied_ += now * element_bytes * (size() - 1);
    if (!moves.empty()) {
      RETURN_IF_ERROR(nccl_->Issue("ncclSend", Exchange(std::move(moves), MovedAs(type))));
    }
    RETURN_IF_ERROR(options_.kernels->Reduce(nccl_->stream(), sources_, type, now, scale, false,
                                             recv.At(begin), nullptr));
  }
  return nccl_->Await("ReduceScatter");
}

absl::Status NcclCommunicator::AllReduce(void* buffer, int64_t count, ElementType type, ReduceOp op,
                                         double scale) {
  RETURN_IF_ERROR(CheckAllReduce(buffer, count, type, op, scale));
  RETURN_IF_ERROR(Agree(OperationDigest(
      Operation::kAllReduce, {count, type.number(), static_cast<int64_t>(op), DigestOf(scale)})));
  if (count == 0) return absl::OkStatus();
  // The library's maximum may lose a NaN.
  if (options_.library_sums && op == ReduceOp::kSum &&
      ScalingOf(type, scale) != Scaling::kByKernel) {
    return Finish(SumAllByLibrary(buffer, count, type, scale));
  }
  return Finish(CombineAll(buffer, count, type, op, scale));
}

absl::Status NcclCommunicator::SumAllByLibrary(void* buffer, int64_t count, ElementType type,
                                               double scale) {
  const auto sum = [nccl = options_.nccl, buffer, count, type](NcclOp op, NcclComm* comm,
                                                               CudaStreamHandle* stream) {
    return nccl->AllReduce(buffer, buffer, count, NcclTypeOf(type), op, comm, stream);
  };
  RETURN_IF_ERROR(nccl_->Issue("ncclAllReduce", Scaled(type, scale, sum)));
  return nccl_->Await("ncclAllReduce");
}

absl::Status NcclCommunicator::CombineAll(void* buffer, int64_t count, ElementType type,
                                          ReduceOp op, double scale) {
  const int64_t element_bytes = SizeBytes(type);
  const int64_t piece =
      std::min(count, std::max<int64_t>(1, options_.staging_bytes / (size() * element_bytes)));
  RETURN_IF_ERROR(EnsureStaging(piece * element_bytes * size()));
  NcclApi* nccl = options_.nccl;
  void* staging = staging_.data();
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t bytes = std::min(piece, count - begin) * element_bytes;
    void* part = At(buffer, begin * element_bytes);
    RETURN_IF_ERROR(nccl_->Issue("ncclAllGather", [=](NcclComm* comm, CudaStreamHandle* stream) {
      return nccl->AllGather(part, staging, bytes, NcclType::kUint8, comm, stream);
    }));
    for (int r = 0; r < size(); ++r) sources_[r] = At(staging, r * bytes);
    payload_bytes_copied_ += bytes * size();
    RETURN_IF_ERROR(options_.kernels->Combine(nccl_->stream(), sources_, type, op, scale,
                                              bytes / element_bytes, part));
  }
  return nccl_->Await("AllReduce");
}

absl::Status NcclCommunicator::ReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                                   absl::Span<const ElementRange> slices_by_rank,
                                                   absl::Span<const ElementRange> parts,
                                                   DType dtype, double scale, bool accumulate,
                                                   host::SumOutput recv,
                                                   host::GradientStats* stats) {
  RETURN_IF_ERROR(
      CheckReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, recv, rank(), size()));
  RETURN_IF_ERROR(
      Agree(OperationDigest(Operation::kReduceScatterMapped,
                            {slices_by_rank.back().end, static_cast<int64_t>(parts.size()),
                             static_cast<int64_t>(dtype), static_cast<int64_t>(recv.dtype)})));
  const MappedSum sum = {sends_by_rank[rank()], slices_by_rank, parts, dtype, scale, accumulate};
  return Finish(SumParts(sum, recv, stats));
}

// What `rank` sends to `peer` and gets from it, part by part; what comes is packed into `slot`.
void NcclCommunicator::AppendMoves(const MappedSum& sum, int rank, int peer, char* slot,
                                   std::vector<Move>* moves) {
  const int64_t element_bytes = SizeBytes(sum.dtype);
  // Both ranks of a pair go through the parts in the same order, so the n-th send meets the n-th
  // receive.
  for (const ElementRange& part : sum.parts) {
    const ElementRange theirs = Intersect(part, sum.slices[peer]);
    const ElementRange mine = Intersect(part, sum.slices[rank]);
    const char* from = At(sum.own_send, theirs.begin * element_bytes);
    if (!theirs.empty()) moves->push_back({true, from, nullptr, theirs.size(), peer});
    if (!mine.empty()) moves->push_back({false, nullptr, slot, mine.size(), peer});
    slot += mine.size() * element_bytes;
  }
}

absl::Status NcclCommunicator::SumParts(const MappedSum& sum, host::SumOutput recv,
                                        host::GradientStats* stats) {
  const int64_t element_bytes = SizeBytes(sum.dtype);
  const ElementRange own = sum.slices[rank()];
  int64_t own_elements = 0;
  for (const ElementRange& part : sum.parts) own_elements += Intersect(part, own).size();
  const int64_t slot_bytes = SlotBytes(own_elements * element_bytes);
  RETURN_IF_ERROR(EnsureStaging(slot_bytes * (size() - 1)));
  const auto slot_of = [&](int r) {
    // The own gradient is read in place and has no slot.
    return At(staging_.data(), slot_bytes * (r < rank() ? r : r - 1));
  };
  std::vector<Move> moves;
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) AppendMoves(sum, rank(), r, slot_of(r), &moves);
  }
  payload_bytes_copied_ += own_elements * element_bytes * (size() - 1);
  if (!moves.empty()) {
    RETURN_IF_ERROR(nccl_->Issue("ncclSend", Exchange(std::move(moves), NcclTypeOf(sum.dtype))));
  }
  // Pinned memory: kernels add to it, and it may be read after Await.
  auto* measured = stats == nullptr ? nullptr : stats_.data_as<host::GradientStats>();
  // Nothing of the last reduction is under way: each waits for the stream.
  if (measured != nullptr) *measured = {};
  // As AppendMoves has packed what came: part after part.
  int64_t packed = 0;
  for (const ElementRange& part : sum.parts) {
    const ElementRange mine = Intersect(part, own);
    if (mine.empty()) continue;
    for (int r = 0; r < size(); ++r) {
      sources_[r] = r == rank() ? At(sum.own_send, mine.begin * element_bytes)
                                : slot_of(r) + packed * element_bytes;
    }
    RETURN_IF_ERROR(options_.kernels->Reduce(nccl_->stream(), sources_, sum.dtype, mine.size(),
                                             sum.scale, sum.accumulate,
                                             recv.At(mine.begin - own.begin), measured));
    packed += mine.size();
  }
  RETURN_IF_ERROR(nccl_->Await("ReduceScatterMapped"));
  if (stats != nullptr) *stats = *measured;
  return absl::OkStatus();
}

}  // namespace tessera
