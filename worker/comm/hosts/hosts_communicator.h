// Collectives among ranks of several hosts: shared memory within a host, TCP between hosts, and no
// byte crosses twice for ranks that can share it.
//
//   AllGatherMapped      rank r sends its slice once to each other host, to its agent there, which
//                        writes it where all ranks of that host see it
//   ReduceScatterMapped  on each host, the agent of rank r sums r's slice over the host's ranks and
//                        sends the sum to r, which adds the hosts' sums in the order of the hosts
//   the small ones       within the host; then between the first ranks of the hosts; then within
//
// With W ranks on H equal hosts and a unit of P bytes, each host sends and receives P * (H - 1) / H
// for either of the first two: as little as any algorithm. The agents (see RankTopology) spread it
// over the ranks. Sums between hosts travel as fp32, the parts of a slice one after another.
//
// Each operation begins with a digest that ranks of a host compare in shared memory and hosts over
// TCP, so different operations are an error on all ranks. An error on one rank is told to its host
// and to its peers on other hosts, which tell theirs. Waits for other hosts last longer than those
// within one, so that the host on which a rank is missing names it.
#ifndef TESSERA_WORKER_COMM_HOSTS_HOSTS_COMMUNICATOR_H_
#define TESSERA_WORKER_COMM_HOSTS_HOSTS_COMMUNICATOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/rank_topology.h"
#include "worker/comm/communicator.h"
#include "worker/comm/operation_digest.h"
#include "worker/comm/reduce_parts.h"
#include "worker/comm/shm/shm_communicator.h"
#include "worker/comm/tcp/peer_mesh.h"
#include "worker/device/host/host_rank_kernels.h"
#include "worker/device/rank_device.h"

namespace tessera {

// The ranks that `rank` needs connections with: its peers, and where it is the first rank of its
// host, the first ranks of the others.
std::vector<int> MeshPeers(const RankTopology& topology, int rank);

class HostsCommunicator : public Communicator {
 public:
  struct Options {
    RankTopology topology = RankTopology::OneHost(1);
    int rank = 0;                                  // In the topology.
    std::unique_ptr<ShmCommunicator> local;        // Of this host's ranks, by local index.
    std::unique_ptr<PeerMesh> mesh;                // Connected with MeshPeers.
    absl::Duration timeout = absl::Minutes(5);     // Of each wait within a host.
    absl::Duration host_grace = absl::Seconds(5);  // What one for another host may take longer.
    // The memory of the buffers of mapped operations, and the kernels that copy and sum there: a
    // GPU, whose data goes through this host's memory. Both outlive this; null: host memory.
    RankDevice* device = nullptr;
    RankKernels* kernels = nullptr;
  };
  explicit HostsCommunicator(Options options);

  int rank() const override { return options_.rank; }
  int size() const override { return options_.topology.world_size(); }
  absl::Status Barrier() override;
  absl::Status AllGather(const void* send, void* recv, int64_t bytes_per_rank) override;
  // By way of AllGather: for small or rare things.
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
  void Abort(absl::Status reason) override;
  int64_t payload_bytes_copied() const override { return payload_bytes_copied_; }
  // No collective: moves bytes to and from one of RankTopology::Peers, which calls it too. Errors:
  // as the others', and of those that this rank communicates with.
  absl::Status ExchangeWith(int peer, absl::Span<const PeerMesh::Part> sends,
                            absl::Span<const PeerMesh::Part> receives, absl::Duration timeout);

 private:
  bool leads() const { return options_.rank == first_; }
  // Runs `body` as the operation, unless one failed before; tells everyone of the first failure.
  absl::Status Run(Operation operation, std::initializer_list<int64_t> arguments,
                   const std::function<absl::Status()>& body);
  // The operation under way has failed: notes it, and tells everyone.
  absl::Status Break(const absl::Status& status);
  // Compares the digests of this host's ranks.
  absl::Status Agree();
  absl::Status Exchange(absl::Span<const int> peers, absl::Span<const PeerMesh::Part> sends,
                        absl::Span<const PeerMesh::Part> receives);
  // The bodies.
  absl::Status DoBarrier();
  absl::Status DoAllGather(const void* send, void* recv, int64_t bytes_per_rank);
  absl::Status DoReduceScatter(const void* send, host::SumOutput recv, int64_t count_per_rank,
                               ElementType type, double scale);
  absl::Status DoAllReduce(char* buffer, int64_t count, ElementType type, ReduceOp op,
                           double scale);
  absl::Status DoBroadcast(void* buffer, int64_t bytes, int root);
  absl::Status DoAllGatherMapped(std::byte* base, int64_t bytes_per_rank);
  absl::Status DoReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                     absl::Span<const ElementRange> slices_by_rank,
                                     absl::Span<const ElementRange> parts, DType dtype,
                                     double scale, bool accumulate, host::SumOutput recv,
                                     host::GradientStats* stats);
  // One ReduceScatterMapped of this rank.
  struct Reduction {
    absl::Span<const void* const> sends_by_rank;
    PartsReduction parts;  // Of the own slice.
    DType sum_dtype = DType::kFp32;
  };
  // Whether the gradients of this rank are its host's sum in place: nothing is to be summed,
  // converted or copied before it is sent.
  bool HasSum(const Reduction& reduction) const;
  const std::byte* OwnGradient(const Reduction& reduction, ElementRange range) const;
  // The same with a device between: hosts_communicator_device.cc.
  absl::Status GatherFromDevice(std::byte* base, int64_t bytes_per_rank);
  absl::Status SumFromDevice(const Reduction& reduction, ElementRange slice,
                             std::vector<std::byte>* sum);
  absl::Status FinishToDevice(const Reduction& reduction, double scale, bool accumulate,
                              host::SumOutput recv, host::GradientStats* stats);
  absl::Status CopyParts(const Reduction& reduction, host::SumOutput recv, bool to_device);
  // Sums the slice's parts over the host's ranks, packed.
  absl::Status SumLocally(const Reduction& reduction, ElementRange slice,
                          std::vector<std::byte>* sum);
  // Adds to sends_ and receives_.
  absl::Status SendSum(const Reduction& reduction, size_t served, ElementRange slice);
  void ReceiveSums(const Reduction& reduction);

  const Options options_;
  const int host_;
  const int first_;                 // Rank of this host.
  const std::vector<int> peers_;    // See RankTopology.
  const std::vector<int> served_;   // See RankTopology.
  const std::vector<int> leaders_;  // Of the other hosts.
  PeerMesh::Operation operation_;   // Under way.
  absl::Status broken_;             // The first error, once there is one.
  std::atomic<int64_t> payload_bytes_copied_{0};
  // Kept so that steady operations allocate nothing.
  std::vector<PeerMesh::Part> sends_, receives_;
  std::vector<const void*> inputs_;
  HostRankKernels kernels_;
  // With a device: a sum there; slices that are gathered, and a result, here.
  Buffer device_sum_, slices_;
  std::vector<std::byte> result_;
  // In the dtype of the result, packed.
  std::vector<std::vector<std::byte>> served_sums_;  // By served_.
  std::vector<std::vector<std::byte>> host_sums_;    // Of the own slice, by host.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_HOSTS_HOSTS_COMMUNICATOR_H_
