// Collectives among ranks that have a GPU each. NCCL moves; what is summed is summed here.
//
//   agree     over `control`: have all ranks come, with the same operation and sizes?
//   move      one group of NCCL calls on this communicator's stream
//   combine   a kernel on the same stream, which takes the slices in rank order
//   await     the device, the library's errors, an abort, the deadline
//
// So results have the bits of the CPU's communicators, a rank that stays away or disagrees is named
// and never makes the others hang inside of NCCL, and an abort by anyone ends every rank's wait
// with its reason. With `library_sums` NCCL itself sums where types allow, in an order of its own:
// fewer bytes through memory, and results that are equal on all ranks but not those of the CPU. It
// sums in the type that travels and scales each rank's part before it sums them; see Scaling.
//
// Buffers are addresses of the device. Each mapped buffer is in each rank's own memory, so the
// operations on them move bytes: ranks are hosts of one rank each.
#ifndef TESSERA_WORKER_COMM_NCCL_NCCL_COMMUNICATOR_H_
#define TESSERA_WORKER_COMM_NCCL_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"
#include "worker/comm/direct_communicators.h"
#include "worker/comm/nccl/nccl_rank.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/slice_kernels.h"

namespace tessera {

// What a slice takes of staging.
inline constexpr int64_t kSlotAlignmentBytes = 128;
inline int64_t SlotBytes(int64_t slice_bytes) {
  return (slice_bytes + kSlotAlignmentBytes - 1) / kSlotAlignmentBytes * kSlotAlignmentBytes;
}

class NcclCommunicator : public Communicator {
 public:
  struct Options {
    NcclApi* nccl = nullptr;
    NcclThread* thread = nullptr;  // The device's only one.
    CudaDevice* device = nullptr;
    std::string stream = "nccl";  // Its name, which decides its priority.
    SliceKernels* kernels = nullptr;
    std::shared_ptr<SliceKernels> owned_kernels;  // Kept with the communicator, if not null.
    // The same ranks, on the CPU; nobody else calls it but for Abort. What it copies is small.
    Communicator* control = nullptr;
    std::function<bool()> control_aborted;            // Whether anyone aborted it. From any thread.
    absl::Duration timeout = absl::Minutes(5);        // Of joining, and of each operation.
    absl::Duration call_timeout = absl::Seconds(30);  // Of each call of NCCL, abort among them.
    int64_t staging_bytes = int64_t{64} << 20;        // Of the device; more where it must be.
    bool library_sums = false;                        // Alike on all ranks.
    DirectPlace place;                                // Which GPU this rank has.
    // Alike on all ranks: operations are on mapped buffers, which are in these regions. They are
    // registered with NCCL, with staging for slices of up to `max_slice_bytes`, before the first
    // operation: on all ranks, or, where one cannot, on none, and the log says which and why.
    bool registers = false;
    std::vector<NcclRank::Region> regions;
    int64_t max_slice_bytes = 0;
  };

  // What `options` points to outlives the communicator. Waits until all ranks have joined.
  // Errors: InvalidArgument     more than kMaxSlices ranks
  //         FailedPrecondition  ranks have different versions of NCCL, or one GPU: the message
  //                             names both
  //         ResourceExhausted   the device has no stream or event left
  //         DeadlineExceeded    ranks did not join in time
  //         Aborted             the epoch was ended, also by a rank that could not join
  //         Unavailable, Internal  NCCL or the device failed
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(const Options& options);
  // Frees it by aborting it alone: waits for no other rank, but for running work of other
  // communicators of the device.
  ~NcclCommunicator() override;

  int rank() const override { return options_.control->rank(); }
  int size() const override { return options_.control->size(); }
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
  void Abort(absl::Status reason) override { options_.control->Abort(std::move(reason)); }
  int64_t payload_bytes_copied() const override { return payload_bytes_copied_; }

  // Stops what runs on all ranks, and leaves the library its resources, where it can. Broken then.
  // Idempotent. As all operations, from one thread at a time. Errors: those of NcclRank::Revoke
  absl::Status Revoke(absl::Status reason);

  // Whether this rank's memory could be registered; whether all ranks' is.
  bool could_register() const { return could_register_; }
  bool is_registered() const { return is_registered_; }

 private:
  NcclCommunicator(const Options& options, std::shared_ptr<NcclRank> ranked, Buffer stats);

  // Before any operation: finds the other ranks, checks that they can be joined, and joins them.
  absl::Status Meet();

  // All ranks have come with the same `digest` (see operation_digest.h).
  absl::Status Agree(uint32_t digest);
  absl::Status Break(absl::Status status);  // Tells the others, and then does as End.
  absl::Status End(absl::Status status);    // Remembers the first error, and ends what runs.
  absl::Status Finish(absl::Status status) { return status.ok() ? status : Break(status); }
  absl::Status EnsureStaging(int64_t size_bytes);
  // All ranks together. Errors: those of an operation; not being able to register is none.
  absl::Status Register();
  absl::Status RegisterOwn();

  // What follows an agreement. None of it breaks the communicator by itself.
  absl::Status Gather(const void* send, void* recv, int64_t bytes_per_rank);
  // How the library multiplies a sum of these by `scale`, and whether it is left to it at all.
  enum class Scaling : uint8_t { kNone, kAverage, kPreScaled, kByKernel };
  Scaling ScalingOf(ElementType type, double scale) const;
  // A group of one call with the op that scales so.
  using SumCall = std::function<NcclResult(NcclOp, NcclComm*, CudaStreamHandle*)>;
  NcclRank::Group Scaled(ElementType type, double scale, SumCall sum) const;
  absl::Status SumByLibrary(const void* send, void* recv, int64_t count, DType dtype, double scale);
  absl::Status SumByKernel(const void* send, host::SumOutput recv, int64_t count, ElementType type,
                           double scale);
  absl::Status SumAllByLibrary(void* buffer, int64_t count, ElementType type, double scale);
  absl::Status CombineAll(void* buffer, int64_t count, ElementType type, ReduceOp op, double scale);
  struct Move;
  NcclRank::Group Exchange(std::vector<Move> moves, NcclType type) const;
  struct MappedSum;
  static void AppendMoves(const MappedSum& sum, int rank, int peer, char* slot,
                          std::vector<Move>* moves);
  absl::Status SumParts(const MappedSum& sum, host::SumOutput recv, host::GradientStats* stats);

  const Options options_;
  std::shared_ptr<NcclRank> nccl_;
  Buffer stats_;  // Pinned: one GradientStats.
  Buffer staging_;
  std::vector<uint32_t> digests_;
  std::vector<const void*> sources_;
  absl::Status broken_;
  bool library_sums_fp8_ = false;  // It can, on the GPUs of all ranks.
  bool could_register_ = true;
  bool is_registered_ = false;
  std::atomic<int64_t> payload_bytes_copied_{0};
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_NCCL_COMMUNICATOR_H_
