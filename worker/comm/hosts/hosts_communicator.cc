#include "worker/comm/hosts/hosts_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "layout/reduced_parts.h"
#include "worker/comm/collective_arguments.h"

namespace tessera {
namespace {

// Of what the small operations hold at once.
constexpr int64_t kChunkBytes = 4 << 20;

// The first rank of each other host speaks for its host.
std::vector<int> OtherLeaders(const RankTopology& topology, int host) {
  std::vector<int> leaders;
  for (int other = 0; other < topology.num_hosts(); ++other) {
    if (other != host) leaders.push_back(topology.FirstRank(other));
  }
  return leaders;
}

std::string Describe(uint64_t digest) {
  return std::string(OperationName(static_cast<uint32_t>(digest)));
}

}  // namespace

std::vector<int> MeshPeers(const RankTopology& topology, int rank) {
  std::vector<int> peers = topology.Peers(rank);
  const int host = topology.HostOf(rank);
  // Small operations go between the hosts' first ranks, which need not be each other's agents.
  if (rank == topology.FirstRank(host)) {
    for (const int leader : OtherLeaders(topology, host)) peers.push_back(leader);
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  }
  return peers;
}

HostsCommunicator::HostsCommunicator(Options options)
    : options_(std::move(options)),
      host_(options_.topology.HostOf(options_.rank)),
      first_(options_.topology.FirstRank(host_)),
      peers_(options_.topology.Peers(options_.rank)),
      served_(options_.topology.ServedBy(options_.rank)),
      leaders_(OtherLeaders(options_.topology, host_)),
      operation_{0, Describe},
      served_sums_(served_.size()),
      host_sums_(options_.topology.num_hosts()) {}

// Agree compares digests within the host. Between hosts each frame of the mesh carries the digest.
absl::Status HostsCommunicator::Run(Operation operation, std::initializer_list<int64_t> arguments,
                                    const std::function<absl::Status()>& body) {
  // The peers were told the first error, and wait for no operation of this rank any more.
  if (!broken_.ok()) return broken_;
  operation_.digest = OperationDigest(operation, arguments);
  absl::Status status = Agree();
  if (status.ok()) status = body();
  return status.ok() ? status : Break(status);
}

// Ranks of this host wait in shared memory, peers in a read of the mesh: both must be told, or one
// side waits for its deadline.
absl::Status HostsCommunicator::Break(const absl::Status& status) {
  broken_ = Annotate(status, Describe(operation_.digest));
  options_.local->Abort(broken_);
  // By the thread that uses the mesh, as Tell requires.
  options_.mesh->Tell(broken_);
  return broken_;
}

absl::Status HostsCommunicator::Agree() {
  // Ranks wait here for those of their host only, and afterwards for ones that wait for others'.
  options_.local->set_timeout(options_.timeout);
  std::vector<uint32_t> digests(options_.local->size());
  const uint32_t mine = static_cast<uint32_t>(operation_.digest);
  // As data: the digest of the local all-gather is the same for all operations.
  RETURN_IF_ERROR(options_.local->AllGather(&mine, digests.data(), sizeof(mine)));
  // Longer than the leaders' exchange, so that its error, which names the missing host, comes
  // first.
  options_.local->set_timeout(options_.timeout + 2 * options_.host_grace);
  for (size_t i = 0; i < digests.size(); ++i) {
    if (digests[i] == mine) continue;
    const std::string called = Describe(mine), other = Describe(digests[i]);
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", options_.rank, " called ", called, " while rank ", first_ + static_cast<int>(i),
        " called ", other, called == other ? " with other sizes or types" : ""));
  }
  return absl::OkStatus();
}

absl::Status HostsCommunicator::Exchange(absl::Span<const int> peers,
                                         absl::Span<const PeerMesh::Part> sends,
                                         absl::Span<const PeerMesh::Part> receives) {
  // The grace: a peer may itself wait for a rank of its host until its timeout, and its error,
  // which names that rank, is the one to get.
  return options_.mesh->Exchange(operation_, peers, sends, receives,
                                 SteadyNow() + options_.timeout + options_.host_grace);
}

absl::Status HostsCommunicator::ExchangeWith(int peer, absl::Span<const PeerMesh::Part> sends,
                                             absl::Span<const PeerMesh::Part> receives,
                                             absl::Duration timeout) {
  // Only two ranks take part, so the ranks of the host do not agree on it first.
  if (!broken_.ok()) return broken_;
  operation_.digest = OperationDigest(Operation::kExchange, {});
  const absl::Status status =
      options_.mesh->Exchange(operation_, {peer}, sends, receives, SteadyNow() + timeout);
  return status.ok() ? status : Break(status);
}

absl::Status HostsCommunicator::Barrier() {
  return Run(Operation::kBarrier, {}, [this] { return DoBarrier(); });
}

absl::Status HostsCommunicator::DoBarrier() {
  // Agree has met all ranks of this host. The leaders meet, then each releases its host.
  if (leads()) RETURN_IF_ERROR(Exchange(leaders_, {}, {}));
  return options_.local->Barrier();
}

absl::Status HostsCommunicator::AllGather(const void* send, void* recv, int64_t bytes_per_rank) {
  RETURN_IF_ERROR(CheckAllGather(send, recv, bytes_per_rank, size()));
  return Run(Operation::kAllGather, {bytes_per_rank},
             [&] { return DoAllGather(send, recv, bytes_per_rank); });
}

absl::Status HostsCommunicator::DoAllGather(const void* send, void* recv, int64_t bytes_per_rank) {
  const RankTopology& topology = options_.topology;
  char* all = static_cast<char*>(recv);
  const auto block = [&](int host) { return all + topology.FirstRank(host) * bytes_per_rank; };
  const int64_t own_bytes = topology.NumRanks(host_) * bytes_per_rank;
  // The ranks of a host are adjacent, so a leader sends its host's block in one piece.
  RETURN_IF_ERROR(options_.local->AllGather(send, block(host_), bytes_per_rank));
  if (leads()) {
    sends_.clear();
    receives_.clear();
    for (const int leader : leaders_) {
      const int host = topology.HostOf(leader);
      sends_.push_back({leader, block(host_), own_bytes});
      receives_.push_back({leader, block(host), topology.NumRanks(host) * bytes_per_rank});
    }
    RETURN_IF_ERROR(Exchange(leaders_, sends_, receives_));
  }
  payload_bytes_copied_ += size() * bytes_per_rank;
  // Local rank 0 is the leader, which has all blocks. Its failure ends the others' wait here.
  return options_.local->Broadcast(all, size() * bytes_per_rank, 0);
}

absl::Status HostsCommunicator::ReduceScatter(const void* send, host::SumOutput recv,
                                              int64_t count_per_rank, ElementType type,
                                              double scale) {
  RETURN_IF_ERROR(CheckReduceScatter(send, recv, count_per_rank, type, size()));
  return Run(Operation::kReduceScatter,
             {count_per_rank, type.number(), static_cast<int64_t>(recv.dtype), DigestOf(scale)},
             [&] { return DoReduceScatter(send, recv, count_per_rank, type, scale); });
}

absl::Status HostsCommunicator::DoReduceScatter(const void* send, host::SumOutput recv,
                                                int64_t count_per_rank, ElementType type,
                                                double scale) {
  const int64_t element_bytes = SizeBytes(type);
  const int64_t chunk =
      std::max<int64_t>(kChunkBytes / (int64_t{size()} * size() * element_bytes), 1);
  // Gathers everything from everyone and sums it here. This form moves small control data: rank
  // order counts, bytes do not. The chunk bounds the size^2 blocks in memory.
  std::vector<char> mine(size() * chunk * element_bytes), all(size() * mine.size());
  inputs_.resize(size());
  for (int64_t begin = 0; begin < count_per_rank; begin += chunk) {
    const int64_t count = std::min(chunk, count_per_rank - begin);
    const int64_t bytes = count * element_bytes;
    for (int owner = 0; owner < size(); ++owner) {
      const char* from =
          static_cast<const char*>(send) + (owner * count_per_rank + begin) * element_bytes;
      std::copy(from, from + bytes, mine.data() + owner * bytes);
    }
    RETURN_IF_ERROR(DoAllGather(mine.data(), all.data(), size() * bytes));
    for (int r = 0; r < size(); ++r) {
      inputs_[r] = all.data() + (int64_t{r} * size() + options_.rank) * bytes;
    }
    host::SumElements(inputs_, type, count, scale, false, recv.At(begin), nullptr);
  }
  return absl::OkStatus();
}

absl::Status HostsCommunicator::AllReduce(void* buffer, int64_t count, ElementType type,
                                          ReduceOp op, double scale) {
  RETURN_IF_ERROR(CheckAllReduce(buffer, count, type, op, scale));
  return Run(Operation::kAllReduce,
             {count, type.number(), static_cast<int64_t>(op), DigestOf(scale)},
             [&] { return DoAllReduce(static_cast<char*>(buffer), count, type, op, scale); });
}

absl::Status HostsCommunicator::DoAllReduce(char* buffer, int64_t count, ElementType type,
                                            ReduceOp op, double scale) {
  const int64_t element_bytes = SizeBytes(type);
  const int64_t chunk =
      std::min(count, std::max<int64_t>(kChunkBytes / (size() * element_bytes), 1));
  // Gathered whole, so that all ranks add in rank order. Only small or rare things come this way.
  std::vector<char> all(size() * chunk * element_bytes);
  inputs_.resize(size());
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t bytes = std::min(chunk, count - begin) * element_bytes;
    char* part = buffer + begin * element_bytes;
    RETURN_IF_ERROR(DoAllGather(part, all.data(), bytes));
    for (int r = 0; r < size(); ++r) inputs_[r] = all.data() + r * bytes;
    host::CombineElements(inputs_, type, op, scale, bytes / element_bytes, part);
  }
  return absl::OkStatus();
}

absl::Status HostsCommunicator::Broadcast(void* buffer, int64_t bytes, int root) {
  RETURN_IF_ERROR(CheckBroadcast(buffer, bytes, root, size()));
  return Run(Operation::kBroadcast, {bytes, root},
             [&] { return DoBroadcast(buffer, bytes, root); });
}

absl::Status HostsCommunicator::DoBroadcast(void* buffer, int64_t bytes, int root) {
  const int root_host = options_.topology.HostOf(root);
  const int from = options_.topology.FirstRank(root_host);
  const bool has_it = root_host == host_;
  payload_bytes_copied_ += bytes;
  // Before the exchange: the leader of the root's host has the bytes only after this.
  if (has_it) {
    RETURN_IF_ERROR(options_.local->Broadcast(buffer, bytes, options_.topology.LocalIndex(root)));
  }
  if (leads()) {
    sends_.clear();
    receives_.clear();
    if (!has_it) receives_.push_back({from, buffer, bytes});
    for (const int leader : leaders_) {
      if (has_it) sends_.push_back({leader, buffer, bytes});
    }
    RETURN_IF_ERROR(Exchange(leaders_, sends_, receives_));
  }
  // Ranks of the root's host wait for their leader too: if its exchange fails, all get the error.
  return has_it ? options_.local->Barrier() : options_.local->Broadcast(buffer, bytes, 0);
}

absl::Status HostsCommunicator::AllGatherMapped(std::byte* base, int64_t bytes_per_rank) {
  RETURN_IF_ERROR(CheckAllGatherMapped(base, bytes_per_rank, size()));
  return Run(Operation::kAllGatherMapped, {bytes_per_rank},
             [&] { return DoAllGatherMapped(base, bytes_per_rank); });
}

absl::Status HostsCommunicator::DoAllGatherMapped(std::byte* base, int64_t bytes_per_rank) {
  if (options_.device != nullptr) return GatherFromDevice(base, bytes_per_rank);
  sends_.clear();
  receives_.clear();
  // Each slice goes to one agent a host, which receives it into memory that its host shares.
  for (int host = 0; host < options_.topology.num_hosts(); ++host) {
    if (host == host_) continue;
    sends_.push_back({options_.topology.Agent(host, options_.rank),
                      base + options_.rank * bytes_per_rank, bytes_per_rank});
  }
  for (const int rank : served_) {
    receives_.push_back({rank, base + rank * bytes_per_rank, bytes_per_rank});
    payload_bytes_copied_ += bytes_per_rank;
  }
  RETURN_IF_ERROR(Exchange(peers_, sends_, receives_));
  // The agents of this host are several ranks. Nobody reads before all of them have received.
  return options_.local->Barrier();
}

absl::Status HostsCommunicator::ReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                                    absl::Span<const ElementRange> slices_by_rank,
                                                    absl::Span<const ElementRange> parts,
                                                    DType dtype, double scale, bool accumulate,
                                                    host::SumOutput recv,
                                                    host::GradientStats* stats) {
  RETURN_IF_ERROR(CheckReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, recv,
                                           options_.rank, size()));
  const auto types = {static_cast<int64_t>(dtype), static_cast<int64_t>(recv.dtype)};
  return Run(Operation::kReduceScatterMapped, types, [&] {
    return DoReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, scale, accumulate,
                                 recv, stats);
  });
}

bool HostsCommunicator::HasSum(const Reduction& reduction) const {
  // A lone rank's gradient in the dtype of sums is its host's sum: it is sent from its place.
  return options_.device == nullptr && options_.local->size() == 1 &&
         reduction.parts.dtype == reduction.sum_dtype;
}

const std::byte* HostsCommunicator::OwnGradient(const Reduction& reduction,
                                                ElementRange range) const {
  return static_cast<const std::byte*>(reduction.sends_by_rank[options_.rank]) +
         range.begin * SizeBytes(reduction.parts.dtype);
}

absl::Status HostsCommunicator::SumLocally(const Reduction& reduction, ElementRange slice,
                                           std::vector<std::byte>* sum) {
  if (options_.device != nullptr) return SumFromDevice(reduction, slice, sum);
  PartsReduction parts = reduction.parts;
  parts.slice = slice;
  sum->resize(CountIn(parts.parts, slice) * SizeBytes(reduction.sum_dtype));
  const host::SumOutput output = {sum->data(), reduction.sum_dtype};
  inputs_.resize(options_.local->size());
  return ReduceParts(
      &kernels_, parts, &inputs_,
      [&](size_t i, const SlicePart& part) {
        return static_cast<const char*>(reduction.sends_by_rank[first_ + i]) +
               part.range.begin * SizeBytes(parts.dtype);
      },
      [&](const SlicePart& part) { return output.At(part.packed_elements); }, nullptr);
}

absl::Status HostsCommunicator::SendSum(const Reduction& reduction, size_t served,
                                        ElementRange slice) {
  const int to = served_[served];
  if (!HasSum(reduction)) {
    std::vector<std::byte>* sum = &host_sums_[host_];  // Replicas have equal slices.
    if (!(slice == reduction.parts.slice)) {
      sum = &served_sums_[served];
      RETURN_IF_ERROR(SumLocally(reduction, slice, sum));
    }
    sends_.push_back({to, sum->data(), static_cast<int64_t>(sum->size())});
    return absl::OkStatus();
  }
  // Several buffers of one frame. The receiver has the same parts, so it gets them packed.
  for (const ElementRange& whole : reduction.parts.parts) {
    const ElementRange part = Intersect(whole, slice);
    if (part.empty()) continue;
    sends_.push_back({to, const_cast<std::byte*>(OwnGradient(reduction, part)),
                      part.size() * SizeBytes(reduction.sum_dtype)});
  }
  return absl::OkStatus();
}

void HostsCommunicator::ReceiveSums(const Reduction& reduction) {
  const int64_t bytes =
      CountIn(reduction.parts.parts, reduction.parts.slice) * SizeBytes(reduction.sum_dtype);
  for (int host = 0; host < options_.topology.num_hosts(); ++host) {
    if (host == host_) continue;
    host_sums_[host].resize(bytes);
    receives_.push_back(
        {options_.topology.Agent(host, options_.rank), host_sums_[host].data(), bytes});
    payload_bytes_copied_ += bytes;
  }
}

absl::Status HostsCommunicator::DoReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                                      absl::Span<const ElementRange> slices_by_rank,
                                                      absl::Span<const ElementRange> parts,
                                                      DType dtype, double scale, bool accumulate,
                                                      host::SumOutput recv,
                                                      host::GradientStats* stats) {
  const ElementRange own = slices_by_rank[options_.rank];
  // Without scale and accumulation: those belong to the last sum, not to a host's.
  const Reduction reduction = {sends_by_rank, {parts, own, dtype}, recv.dtype};
  sends_.clear();
  receives_.clear();
  // Before SendSum, which sends this same sum to replicas.
  if (!HasSum(reduction)) RETURN_IF_ERROR(SumLocally(reduction, own, &host_sums_[host_]));
  for (size_t i = 0; i < served_.size(); ++i)
    RETURN_IF_ERROR(SendSum(reduction, i, slices_by_rank[served_[i]]));
  // All sums that this rank sends are ready by now: none is computed while peers wait in the
  // exchange.
  ReceiveSums(reduction);
  RETURN_IF_ERROR(Exchange(peers_, sends_, receives_));
  if (options_.device != nullptr) {
    RETURN_IF_ERROR(FinishToDevice(reduction, scale, accumulate, recv, stats));
    return options_.local->Barrier();
  }
  // In the order of the hosts, this one's sum in its turn: the same bits wherever they are added.
  inputs_.resize(host_sums_.size());
  RETURN_IF_ERROR(ReduceParts(
      &kernels_, {parts, own, recv.dtype, scale, accumulate}, &inputs_,
      [&](size_t host, const SlicePart& part) {
        if (static_cast<int>(host) == host_ && HasSum(reduction)) {
          return OwnGradient(reduction, part.range);
        }
        const std::byte* sum = host_sums_[host].data();
        return sum + part.packed_elements * SizeBytes(recv.dtype);
      },
      [&](const SlicePart& part) { return recv.At(part.range.begin - own.begin); }, stats));
  // Until here ranks of this host read each other's gradients. The caller may overwrite its own
  // after this.
  return options_.local->Barrier();
}

void HostsCommunicator::Abort(absl::Status reason) {
  options_.mesh->Abort(
      absl::AbortedError(absl::StrCat("rank ", options_.rank, ": ", reason.message())));
  // Both: its own thread may wait in either.
  options_.local->Abort(std::move(reason));
}

}  // namespace tessera
