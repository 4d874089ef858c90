// For tests: a communicator of a device, called with host memory. What an operation reads is
// copied to the device before it, and what it writes is copied back after it.
#ifndef TESSERA_WORKER_COMM_NCCL_STAGED_COMMUNICATOR_H_
#define TESSERA_WORKER_COMM_NCCL_STAGED_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/cuda_stream.h"

namespace tessera {

// Thread-compatible, as every Communicator. What an operation refuses is passed on as it is.
class StagedCommunicator : public Communicator {
 public:
  // Both outlive it. Errors: those of CudaStream::Create
  static absl::StatusOr<std::unique_ptr<StagedCommunicator>> Create(Communicator* inner,
                                                                    CudaDevice* device);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::Status Barrier() override { return inner_->Barrier(); }
  absl::Status AllGather(const void* send, void* recv, int64_t bytes_per_rank) override;
  absl::Status ReduceScatter(const void* send, host::SumOutput recv, int64_t count_per_rank,
                             ElementType type, double scale) override;
  absl::Status AllReduce(void* buffer, int64_t count, ElementType type, ReduceOp op,
                         double scale) override;
  absl::Status Broadcast(void* buffer, int64_t bytes, int root) override;
  absl::Status AllGatherMapped(std::byte* base, int64_t bytes_per_rank) override;
  absl::Status ReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                   absl::Span<const ElementRange> slices_by_rank,
                                   absl::Span<const ElementRange> parts, DType dtype, double scale,
                                   bool accumulate, host::SumOutput recv,
                                   host::GradientStats* stats) override;
  void Abort(absl::Status reason) override { inner_->Abort(std::move(reason)); }
  int64_t payload_bytes_copied() const override { return inner_->payload_bytes_copied(); }

 private:
  StagedCommunicator(Communicator* inner, CudaDevice* device, std::unique_ptr<CudaStream> stream)
      : inner_(inner), device_(device), stream_(std::move(stream)) {}
  // Room of the device for so many bytes; what was in it may be lost.
  absl::Status Reserve(Buffer* buffer, int64_t size_bytes);
  // Nothing is copied where `size_bytes` is 0.
  absl::Status Copy(void* to, const void* from, int64_t size_bytes);

  Communicator* const inner_;
  CudaDevice* const device_;
  Buffer first_, second_;
  const std::unique_ptr<CudaStream> stream_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_STAGED_COMMUNICATOR_H_
