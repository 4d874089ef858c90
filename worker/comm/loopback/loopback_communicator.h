// One process acts as all ranks agreeing: each operation behaves as if every other rank held the
// same data as this one. Deterministic; nothing waits. For single-process runs and for tests of
// the code above a communicator.
//
//   AllGather      N copies of send          ReduceScatter  N times this rank's slice
//   AllReduce sum  N times the buffer        Broadcast      leaves the buffer as it is
//
// The mapped forms take real buffers of real ranks, and work on those.
#ifndef TESSERA_WORKER_COMM_LOOPBACK_LOOPBACK_COMMUNICATOR_H_
#define TESSERA_WORKER_COMM_LOOPBACK_LOOPBACK_COMMUNICATOR_H_

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"

namespace tessera {

class LoopbackCommunicator : public Communicator {
 public:
  // Errors: InvalidArgument  size < 1, or rank not in [0, size)
  static absl::StatusOr<std::unique_ptr<LoopbackCommunicator>> Create(int rank, int size);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status Barrier() override;
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
  void Abort(absl::Status reason) override ABSL_LOCKS_EXCLUDED(mu_);
  int64_t payload_bytes_copied() const override { return payload_bytes_copied_; }

 private:
  LoopbackCommunicator(int rank, int size) : rank_(rank), size_(size) {}

  absl::Status CheckNotAborted() ABSL_LOCKS_EXCLUDED(mu_);

  const int rank_;
  const int size_;
  std::atomic<int64_t> payload_bytes_copied_{0};
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_LOOPBACK_LOOPBACK_COMMUNICATOR_H_
