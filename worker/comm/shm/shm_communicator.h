// Collectives among ranks of one host that map the same memory: threads, or processes.
//
// Each operation is a row of phases. In a phase a rank publishes its arrival word and waits for
// those of all others:
//
//   AllGatherMapped      phase                           0 bytes copied
//   ReduceScatterMapped  phase, reduce own slice, phase  each input byte read once
//   private memory       (copy a chunk to staging, phase, read all staging) per chunk
//   large AllGather      phase, read all others' memory, phase, where the kernel lets ranks read
//                        each other's memory: one copy instead of two
//
// Two halves of each staging area alternate, so that a chunk costs one phase. Results do not
// depend on timing: sums run in rank order.
//
// The mapping. The caller provides RequiredBytes(), aligned to 128, zero before its first epoch,
// the same memory on every rank (at any address). Each epoch is greater than those before it on
// this mapping, and its ranks join when those of earlier epochs have left: ended, killed in
// whatever state, or returned from their last call. Nothing needs to be zeroed between: a rank
// resets its own slot before it joins, and no one looks at a slot before its rank has joined.
// Stragglers of an earlier epoch find themselves aborted.
//
// Channels are independent rows of operations over one mapping, for streams that communicate at
// once; an abort ends them all.
#ifndef TESSERA_WORKER_COMM_SHM_SHM_COMMUNICATOR_H_
#define TESSERA_WORKER_COMM_SHM_SHM_COMMUNICATOR_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"
#include "worker/comm/shm/shm_region.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {

class ShmCommunicator : public Communicator {
 public:
  struct Options {
    void* base = nullptr;
    int64_t bytes = 0;
    int rank = 0;
    int size = 1;
    uint32_t epoch = 1;  // At least 1.
    int channel = 0;     // In [0, num_channels).
    int num_channels = 4;
    int64_t staging_bytes_per_rank = int64_t{512} << 10;  // Two halves; best within a L2 cache.
    bool reads_peers_memory = true;                  // If all ranks can; false on one: none does.
    absl::Duration join_timeout = absl::Minutes(5);  // Until all ranks have joined.
    absl::Duration timeout = absl::Minutes(5);       // Of each wait of an operation.
    // For messages, where these ranks are some of a larger group: what rank 0 is there, and how
    // large that is. 0: the group is this one.
    int first_rank = 0;
    int group_size = 0;
    // What ReduceScatterMapped sums with, if its buffers are not in host memory; outlives this.
    RankKernels* kernels = nullptr;
  };

  // The size of the mapping; reads num_channels and staging_bytes_per_rank of `options`.
  // Errors: InvalidArgument  they or `size` are out of range
  static absl::StatusOr<int64_t> RequiredBytes(int size, const Options& options);

  // Joins the epoch and waits until every rank has.
  // Errors: InvalidArgument     an option is out of range, or the mapping too small or unaligned
  //         FailedPrecondition  this rank joined this or a later epoch before, or another rank
  //                             joined with another size, channel count or staging size
  //         DeadlineExceeded    ranks did not join in time: the message names them
  //         Aborted             the epoch was aborted or a later one has started
  static absl::StatusOr<std::unique_ptr<ShmCommunicator>> Create(const Options& options);

  // Aborts an epoch without being one of its ranks, as a supervisor of ranks does. Reads base,
  // bytes, size, epoch, num_channels and staging_bytes_per_rank.
  // Errors: InvalidArgument  as for Create
  static absl::Status AbortEpoch(const Options& options, const absl::Status& reason);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
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
  // From now on, of each wait of an operation.
  void set_timeout(absl::Duration timeout) { timeout_ = timeout; }
  void Abort(absl::Status reason) override;
  int64_t payload_bytes_copied() const override { return payload_bytes_copied_; }
  // Whether anyone has ended the epoch. From any thread.
  bool aborted() const { return abort_.raised(); }

 private:
  explicit ShmCommunicator(const Options& options);

  absl::Status Join();
  // Waits until the word of every rank has come to this epoch.
  absl::Status AwaitAll(WaitWord RankSlot::*word);
  // Whether this rank can read the memory of all others.
  bool CanReadPeers() const;
  // One phase of the operation that `digest` describes (see operation_digest.h).
  absl::Status Phase(uint32_t digest);
  absl::Status AwaitPeer(int peer, uint32_t phase, uint32_t digest, absl::Time deadline);
  absl::Status Break(absl::Status status);  // Remembers the first error, tells the others.
  // Those whose word has not come to `value`.
  std::string MissingRanks(WaitWord RankSlot::*word, uint32_t value) const;
  int Named(int rank) const { return options_.first_rank + rank; }
  int NamedSize() const { return options_.group_size == 0 ? options_.size : options_.group_size; }

  // This rank's staging half in use, or that of another rank.
  char* Half(int rank, int half) const;
  RankKernels* kernels() { return options_.kernels != nullptr ? options_.kernels : &host_kernels_; }
  int64_t half_bytes() const { return options_.staging_bytes_per_rank / 2; }
  void CopyPayload(void* to, const void* from, int64_t bytes);
  absl::Status ReadPeers(const void* send, char* recv, int64_t bytes_per_rank, uint32_t digest);
  // The memory of `peer` could not be read.
  absl::Status BreakUnread(int peer, const absl::Status& read);
  struct Combination {
    ElementType type;
    ReduceOp op;
    double scale;
  };
  absl::Status AllReduceChunk(char* buffer, int64_t count, const Combination& combination,
                              uint32_t digest);

  const Options options_;
  HostRankKernels host_kernels_;
  const ShmRegion region_;
  const AbortFlag abort_;
  const WaitPolicy policy_;
  absl::Duration timeout_;            // Of each wait of an operation.
  const uint64_t nonce_;              // Others read it to see whether they can.
  bool reads_memory_ = false;         // All ranks can read all others' memory.
  uint32_t phase_ = 0;                // Of this epoch; wraps.
  int half_ = 0;                      // The staging half that is written next.
  absl::Status broken_;               // The first error, once there is one.
  std::vector<const void*> sources_;  // One for each rank; sized once.
  std::atomic<int64_t> payload_bytes_copied_{0};
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_SHM_SHM_COMMUNICATOR_H_
