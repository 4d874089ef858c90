// Two hosts of this machine: halves of the team that share memory only within each half, and reach
// each other over TCP by the loopback interface. For comparison Gloo alone, among all ranks.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/gloo_group.h"
#include "tests/bench/team.h"
#include "worker/comm/hosts/hosts_communicator.h"

namespace tessera {
namespace bench {
namespace {

enum Series {
  kGather,
  kReduceScatter,
  kBarrier,
  kGlooGather,
  kGlooReduceScatter,
  kGlooBarrier,
  kBytesReceived,
};

constexpr int64_t kAddressBytes = 256;

RankTopology TwoHosts(int size) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(2 * rank < size ? "a" : "b");
  return RankTopology::Create(hosts).value();
}

int64_t ChannelBytes(int size) {
  return ShmCommunicator::RequiredBytes(size / 2, ShmCommunicator::Options()).value();
}

// The layout of the team's memory.
struct Places {
  int size;
  int64_t bytes;  // Of a unit.

  int64_t Window(int host) const { return host * bytes; }
  int64_t Gradients(int rank) const { return (2 + rank) * bytes; }
  int64_t Channel(int host) const { return (2 + size) * bytes + host * ChannelBytes(size); }
  int64_t Address(int rank) const {
    return (2 + size) * bytes + 2 * ChannelBytes(size) + rank * kAddressBytes;
  }
  int64_t Total() const { return Address(size); }
};

std::unique_ptr<HostsCommunicator> Join(TeamMember* member, const Places& places) {
  const int rank = member->rank(), size = member->size();
  HostsCommunicator::Options options;
  options.topology = TwoHosts(size);
  options.rank = rank;
  const int host = options.topology.HostOf(rank);
  PeerMesh::Options mesh;
  mesh.rank = rank;
  mesh.group_size = size;
  mesh.peers = MeshPeers(options.topology, rank);
  options.mesh = PeerMesh::Listen(mesh).value();
  const std::string& address = options.mesh->address();
  TESSERA_CHECK(address.size() < kAddressBytes);
  std::memcpy(member->shared() + places.Address(rank), address.data(), address.size());
  ShmCommunicator::Options local;
  local.base = member->shared() + places.Channel(host);
  local.bytes = ChannelBytes(size);
  local.rank = options.topology.LocalIndex(rank);
  local.size = options.topology.NumRanks(host);
  options.local = ShmCommunicator::Create(local).value();
  member->Barrier();
  std::map<int, std::string> addresses;
  for (int r = 0; r < size; ++r) addresses[r] = member->shared() + places.Address(r);
  TESSERA_CHECK(options.mesh->Connect(addresses, absl::Now() + absl::Minutes(1)).ok());
  return std::make_unique<HostsCommunicator>(std::move(options));
}

void Measure(TeamMember* member, const Places& places, const std::string& gloo_directory) {
  const int rank = member->rank(), size = member->size();
  const int64_t count = places.bytes / static_cast<int64_t>(sizeof(float)), shard = count / size;
  std::unique_ptr<HostsCommunicator> comm = Join(member, places);
  std::byte* window =
      reinterpret_cast<std::byte*>(member->shared() + places.Window(TwoHosts(size).HostOf(rank)));
  std::vector<const void*> gradients;
  std::vector<ElementRange> slices;
  for (int r = 0; r < size; ++r) {
    gradients.push_back(member->shared() + places.Gradients(r));
    slices.push_back({r * shard, (r + 1) * shard});
  }
  float* own = reinterpret_cast<float*>(member->shared() + places.Gradients(rank));
  for (int64_t i = 0; i < count; ++i) own[i] = static_cast<float>(rank + 1);
  std::memset(window + rank * shard * sizeof(float), 1, shard * sizeof(float));
  float* reduced = reinterpret_cast<float*>(WarmMemory(shard * sizeof(float)));
  float* full = reinterpret_cast<float*>(WarmMemory(places.bytes));
  GlooGroup gloo(gloo_directory, rank, size);
  while (member->NextRound()) {
    const int64_t before = comm->payload_bytes_copied();
    member->Time(kGather, 1,
                 [&] { TESSERA_CHECK(comm->AllGatherMapped(window, shard * sizeof(float)).ok()); });
    member->Note(kBytesReceived, static_cast<double>(comm->payload_bytes_copied() - before));
    member->Time(kGlooGather, 1, [&] { gloo.AllGather(full + rank * shard, shard, full); });
    member->Time(kReduceScatter, 1, [&] {
      TESSERA_CHECK(comm->ReduceScatterMapped(gradients, slices, {{0, slices.back().end}},
                                              DType::kFp32, 1.0f, false, reduced, nullptr)
                        .ok());
    });
    member->Time(kGlooReduceScatter, 1, [&] { gloo.ReduceScatter(full, count); });
    member->Time(kBarrier, 20, [&] { TESSERA_CHECK(comm->Barrier().ok()); });
    member->Time(kGlooBarrier, 20, [&] { gloo.Barrier(); });
  }
}

std::vector<Row> Judge(int size, const TeamResult& result) {
  const auto& s = result.series;
  std::vector<Row> rows;
  const auto seconds = [&](const char* what, int series) {
    std::vector<double> micros = s[series];
    for (double& value : micros) value *= 1e6;
    rows.push_back(Row{"hosts", what, size, QuartilesOf(micros), "us", Better::kNeither, 0, 0,
                       result.loaded_rounds});
  };
  const auto ratio = [&](const char* what, int gloo, int ours) {
    rows.push_back(Row{"hosts", what, size, RatioOf(s[gloo], s[ours]), "ratio", Better::kHigher, 1,
                       1, result.loaded_rounds});
  };
  seconds("two hosts: all-gather, mapped on each", kGather);
  seconds("two hosts: reduce-scatter, mapped on each", kReduceScatter);
  seconds("two hosts: barrier", kBarrier);
  ratio("Gloo alone / two hosts, all-gather", kGlooGather, kGather);
  ratio("Gloo alone / two hosts, reduce-scatter", kGlooReduceScatter, kReduceScatter);
  ratio("Gloo alone / two hosts, barrier", kGlooBarrier, kBarrier);
  rows.push_back(Row{"hosts", "bytes between hosts of one all-gather", size,
                     QuartilesOf(s[kBytesReceived]), "bytes", Better::kNeither, 0, 0,
                     result.loaded_rounds});
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchHosts(int size, int rounds, int64_t bytes) {
  char directory[] = "/tmp/tessera_bench_XXXXXX";
  if (mkdtemp(directory) == nullptr) return absl::InternalError("no directory below /tmp");
  const Places places = {size, bytes};
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  options.shared_bytes = places.Total();
  absl::StatusOr<TeamResult> result =
      RunTeam(options, [&](TeamMember* member) { Measure(member, places, directory); });
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  RETURN_IF_ERROR(result.status());
  return Judge(size, *result);
}

}  // namespace bench
}  // namespace tessera
