// Hosts of threads: each host has shared memory of its own, and real sockets join them. (The
// conformance tests' own buffers are shared by all.)
#include <mutex>
#include <thread>

#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "worker/comm/communicator_conformance.h"
#include "worker/comm/hosts/hosts_communicator.h"
#include "worker/comm/shm/shm_test_group.h"
#include "worker/device/host/host_rank_device.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {
namespace {

// The host of each of `size` ranks.
using Cut = std::vector<std::string> (*)(int size);

// 1: "a"; 2: "ab"; 4: "aabb"; 8: "aaaabbbb".
std::vector<std::string> TwoHosts(int size) {
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back(2 * r < size ? "a" : "b");
  return hosts;
}

// 3: "abc"; 8: "abbccccc".
std::vector<std::string> UnevenHosts(int size) {
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back(r == 0 ? "a" : r <= size / 3 ? "b" : "c");
  return hosts;
}

struct Rank {
  std::unique_ptr<PeerMesh> mesh;
  HostRankDevice device;
  HostRankKernels kernels;
  std::unique_ptr<HostsCommunicator> comm;
};

// With `by_device`, everything goes the way that it goes where a GPU has the mapped buffers.
std::vector<absl::Status> Run(const GroupOptions& group, const RankBody& body, Cut cut,
                              bool by_device) {
  const RankTopology topology = RankTopology::Create(cut(group.size)).value();
  SharedMapping shared(group.shared_bytes);
  std::vector<std::unique_ptr<SharedMapping>> host_memory;
  for (int host = 0; host < topology.num_hosts(); ++host) {
    GroupOptions local = group;
    local.size = topology.NumRanks(host);
    host_memory.push_back(std::make_unique<SharedMapping>(ShmBytes(local)));
  }
  std::vector<Rank> ranks(group.size);
  std::map<int, std::string> addresses;
  for (int rank = 0; rank < group.size; ++rank) {
    PeerMesh::Options options;
    options.rank = rank;
    options.group_size = group.size;
    options.peers = MeshPeers(topology, rank);
    ranks[rank].mesh = PeerMesh::Listen(options).value();
    addresses[rank] = ranks[rank].mesh->address();
  }
  std::vector<absl::Status> statuses(group.size);
  const auto run = [&](int rank) -> absl::Status {
    const int host = topology.HostOf(rank);
    GroupOptions local = group;
    local.size = topology.NumRanks(host);
    ShmCommunicator::Options shm = ShmOptions(local, *host_memory[host]);
    shm.rank = topology.LocalIndex(rank);
    shm.first_rank = topology.FirstRank(host);
    shm.group_size = group.size;
    shm.join_timeout = absl::Minutes(1);
    HostsCommunicator::Options options;
    options.topology = topology;
    options.rank = rank;
    ASSIGN_OR_RETURN(options.local, ShmCommunicator::Create(shm));
    RETURN_IF_ERROR(ranks[rank].mesh->Connect(addresses, absl::Now() + absl::Minutes(1)));
    options.mesh = std::move(ranks[rank].mesh);
    options.timeout = group.timeout;
    options.host_grace = absl::Seconds(1);
    if (by_device) {
      options.device = &ranks[rank].device;
      options.kernels = &ranks[rank].kernels;
    }
    ranks[rank].comm = std::make_unique<HostsCommunicator>(std::move(options));
    return body({ranks[rank].comm.get(), shared.data()});
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = run(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

CommunicatorBackend Backend(const char* name, Cut cut, bool by_device = false) {
  CommunicatorBackend backend;
  backend.name = name;
  backend.run = [cut, by_device](const GroupOptions& group, const RankBody& body) {
    return Run(group, body, cut, by_device);
  };
  backend.hosts = [cut](int size) {
    const RankTopology topology = RankTopology::Create(cut(size)).value();
    std::vector<int> sizes;
    for (int host = 0; host < topology.num_hosts(); ++host) {
      sizes.push_back(topology.NumRanks(host));
    }
    return sizes;
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(TwoHosts, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("two hosts", TwoHosts)),
                                          testing::Values(1, 2, 4, 8)));
INSTANTIATE_TEST_SUITE_P(ByDevice, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("devices of two hosts", TwoHosts,
                                                                  /*by_device=*/true)),
                                          testing::Values(1, 2, 4)));
INSTANTIATE_TEST_SUITE_P(UnevenHosts, CommunicatorConformanceTest,
                         testing::Combine(testing::Values(Backend("uneven hosts", UnevenHosts)),
                                          testing::Values(3, 8)));

}  // namespace
}  // namespace tessera
