#include "worker/comm/nccl/staged_communicator.h"

#include <utility>

#include "absl/memory/memory.h"
#include "base/status_macros.h"
#include "worker/comm/collective_arguments.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<StagedCommunicator>> StagedCommunicator::Create(Communicator* inner,
                                                                               CudaDevice* device) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                   CudaStream::Create(device->context(), "staging", /*priority=*/0));
  return absl::WrapUnique(new StagedCommunicator(inner, device, std::move(stream)));
}

absl::Status StagedCommunicator::Reserve(Buffer* buffer, int64_t size_bytes) {
  if (buffer->size_bytes() >= size_bytes) return absl::OkStatus();
  // First, so that there is room for the larger one.
  *buffer = Buffer();
  ASSIGN_OR_RETURN(*buffer, device_->Allocate(size_bytes));
  return absl::OkStatus();
}

absl::Status StagedCommunicator::Copy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes == 0) return absl::OkStatus();
  device_->Copy(stream_.get(), to, from, size_bytes);
  // The inner communicator works on a stream of its own, which does not wait for this one.
  stream_->Synchronize();
  return device_->status();
}

absl::Status StagedCommunicator::AllGather(const void* send, void* recv, int64_t bytes_per_rank) {
  // What is refused is refused by the inner communicator, so that errors are the same.
  if (bytes_per_rank == 0 || !CheckAllGather(send, recv, bytes_per_rank, size()).ok()) {
    return inner_->AllGather(send, recv, bytes_per_rank);
  }
  RETURN_IF_ERROR(Reserve(&first_, bytes_per_rank * size()));
  RETURN_IF_ERROR(Reserve(&second_, bytes_per_rank));
  char* const own = first_.data_as<char>() + rank() * bytes_per_rank;
  const bool in_place = send == static_cast<char*>(recv) + rank() * bytes_per_rank;
  // The inner call aliases as the caller's does.
  void* const from = in_place ? own : second_.data();
  RETURN_IF_ERROR(Copy(from, send, bytes_per_rank));
  RETURN_IF_ERROR(inner_->AllGather(from, first_.data(), bytes_per_rank));
  return Copy(recv, first_.data(), bytes_per_rank * size());
}

absl::Status StagedCommunicator::ReduceScatter(const void* send, host::SumOutput recv,
                                               int64_t count_per_rank, ElementType type,
                                               double scale) {
  if (count_per_rank == 0 || !CheckReduceScatter(send, recv, count_per_rank, type, size()).ok()) {
    return inner_->ReduceScatter(send, recv, count_per_rank, type, scale);
  }
  const int64_t slice_bytes = count_per_rank * SizeBytes(type);
  const int64_t recv_bytes = count_per_rank * SizeBytes(recv.dtype);
  RETURN_IF_ERROR(Reserve(&first_, slice_bytes * size()));
  RETURN_IF_ERROR(Reserve(&second_, recv_bytes));
  const int64_t own = rank() * slice_bytes;
  const bool in_place = recv.data == static_cast<const char*>(send) + own;
  void* const to = in_place ? first_.data_as<char>() + own : second_.data();
  RETURN_IF_ERROR(Copy(first_.data(), send, slice_bytes * size()));
  RETURN_IF_ERROR(
      inner_->ReduceScatter(first_.data(), {to, recv.dtype}, count_per_rank, type, scale));
  return Copy(recv.data, to, recv_bytes);
}

absl::Status StagedCommunicator::AllReduce(void* buffer, int64_t count, ElementType type,
                                           ReduceOp op, double scale) {
  if (count == 0 || !CheckAllReduce(buffer, count, type, op, scale).ok()) {
    return inner_->AllReduce(buffer, count, type, op, scale);
  }
  const int64_t size_bytes = count * SizeBytes(type);
  RETURN_IF_ERROR(Reserve(&first_, size_bytes));
  RETURN_IF_ERROR(Copy(first_.data(), buffer, size_bytes));
  RETURN_IF_ERROR(inner_->AllReduce(first_.data(), count, type, op, scale));
  return Copy(buffer, first_.data(), size_bytes);
}

absl::Status StagedCommunicator::Broadcast(void* buffer, int64_t bytes, int root) {
  if (bytes == 0 || !CheckBroadcast(buffer, bytes, root, size()).ok()) {
    return inner_->Broadcast(buffer, bytes, root);
  }
  RETURN_IF_ERROR(Reserve(&first_, bytes));
  RETURN_IF_ERROR(Copy(first_.data(), buffer, bytes));
  RETURN_IF_ERROR(inner_->Broadcast(first_.data(), bytes, root));
  return Copy(buffer, first_.data(), bytes);
}

absl::Status StagedCommunicator::AllGatherMapped(std::byte* base, int64_t bytes_per_rank) {
  if (bytes_per_rank == 0 || !CheckAllGatherMapped(base, bytes_per_rank, size()).ok()) {
    return inner_->AllGatherMapped(base, bytes_per_rank);
  }
  RETURN_IF_ERROR(Reserve(&first_, bytes_per_rank * size()));
  RETURN_IF_ERROR(Copy(first_.data(), base, bytes_per_rank * size()));
  RETURN_IF_ERROR(inner_->AllGatherMapped(first_.data_as<std::byte>(), bytes_per_rank));
  return Copy(base, first_.data(), bytes_per_rank * size());
}

absl::Status StagedCommunicator::ReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                                     absl::Span<const ElementRange> slices_by_rank,
                                                     absl::Span<const ElementRange> parts,
                                                     DType dtype, double scale, bool accumulate,
                                                     host::SumOutput recv,
                                                     host::GradientStats* stats) {
  if (!CheckReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, recv, rank(), size())
           .ok()) {
    return inner_->ReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, scale,
                                       accumulate, recv, stats);
  }
  const int64_t send_bytes = slices_by_rank.back().end * SizeBytes(dtype);
  const int64_t recv_bytes = slices_by_rank[rank()].size() * SizeBytes(recv.dtype);
  RETURN_IF_ERROR(Reserve(&first_, send_bytes));
  RETURN_IF_ERROR(Reserve(&second_, recv_bytes));
  RETURN_IF_ERROR(Copy(first_.data(), sends_by_rank[rank()], send_bytes));
  RETURN_IF_ERROR(Copy(second_.data(), recv.data, recv_bytes));
  const std::vector<const void*> sends(size(), first_.data());  // Only its own is read.
  RETURN_IF_ERROR(inner_->ReduceScatterMapped(sends, slices_by_rank, parts, dtype, scale,
                                              accumulate, {second_.data(), recv.dtype}, stats));
  return Copy(recv.data, second_.data(), recv_bytes);
}

}  // namespace tessera
