#include "job/rank_topology.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace tessera {

RankTopology RankTopology::OneHost(int world_size) { return RankTopology({0, world_size}); }

absl::StatusOr<RankTopology> RankTopology::Create(absl::Span<const std::string> hosts_by_rank) {
  if (hosts_by_rank.empty()) return absl::InvalidArgumentError("a job without ranks");
  std::vector<int> first_ranks;
  std::set<std::string> seen;
  for (size_t rank = 0; rank < hosts_by_rank.size(); ++rank) {
    if (rank > 0 && hosts_by_rank[rank] == hosts_by_rank[rank - 1]) continue;
    // The slices of a host's ranks adjoin in memory, in rank order.
    if (!seen.insert(hosts_by_rank[rank]).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank, " is on '", hosts_by_rank[rank], "', rank ", rank - 1, " on '",
          hosts_by_rank[rank - 1], "': the ranks of a host must follow each other"));
    }
    first_ranks.push_back(static_cast<int>(rank));
  }
  first_ranks.push_back(static_cast<int>(hosts_by_rank.size()));
  return RankTopology(std::move(first_ranks));
}

int RankTopology::HostOf(int rank) const {
  const auto next = std::upper_bound(first_ranks_.begin(), first_ranks_.end(), rank);
  return static_cast<int>(next - first_ranks_.begin()) - 1;
}

int RankTopology::Agent(int host, int rank) const {
  // Spread over the ranks of the host by the index of the rank that is served.
  return FirstRank(host) + LocalIndex(rank) % NumRanks(host);
}

std::vector<int> RankTopology::Peers(int rank) const {
  std::vector<int> peers = ServedBy(rank);
  for (int host = 0; host < num_hosts(); ++host) {
    if (host != HostOf(rank)) peers.push_back(Agent(host, rank));
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

std::vector<int> RankTopology::ServedBy(int rank) const {
  const int host = HostOf(rank);
  std::vector<int> served;
  for (int other = 0; other < world_size(); ++other) {
    if (HostOf(other) != host && Agent(host, other) == rank) served.push_back(other);
  }
  return served;
}

}  // namespace tessera
