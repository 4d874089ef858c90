// Which ranks of a job share a host. Ranks of one host follow each other:
//
//   host 0: ranks 0 1 2     host 1: ranks 3 4     agent of rank 1 on host 1: 4
//
// What ranks of one host need of rank r of another, one of them fetches for all: r's agent there.
//
//   Agent(h, r) = first rank of h + LocalIndex(r) mod (ranks of h)
//
// So traffic between two hosts spreads over their ranks, and no byte crosses twice. Immutable
// value; thread-safe.
#ifndef TESSERA_JOB_RANK_TOPOLOGY_H_
#define TESSERA_JOB_RANK_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera {

class RankTopology {
 public:
  // All ranks on one host. Requires world_size >= 1.
  static RankTopology OneHost(int world_size);
  // `hosts_by_rank` names the host of each rank.
  // Errors: InvalidArgument  no rank, or the ranks of a host do not follow each other
  static absl::StatusOr<RankTopology> Create(absl::Span<const std::string> hosts_by_rank);

  int world_size() const { return first_ranks_.back(); }
  int num_hosts() const { return static_cast<int>(first_ranks_.size()) - 1; }
  // All of these require a rank or host that exists.
  int HostOf(int rank) const;
  int FirstRank(int host) const { return first_ranks_[host]; }
  int NumRanks(int host) const { return first_ranks_[host + 1] - first_ranks_[host]; }
  int LocalIndex(int rank) const { return rank - first_ranks_[HostOf(rank)]; }
  int Agent(int host, int rank) const;
  // The ranks of other hosts that `rank` exchanges bytes with, ascending: its agents, and those
  // whose agent it is. p is a peer of q just where q is one of p.
  std::vector<int> Peers(int rank) const;
  // The ranks of other hosts whose agent `rank` is, ascending.
  std::vector<int> ServedBy(int rank) const;

  friend bool operator==(const RankTopology& a, const RankTopology& b) {
    return a.first_ranks_ == b.first_ranks_;
  }

 private:
  explicit RankTopology(std::vector<int> first_ranks) : first_ranks_(std::move(first_ranks)) {}

  std::vector<int> first_ranks_;  // By host, then the world size.
};

}  // namespace tessera

#endif  // TESSERA_JOB_RANK_TOPOLOGY_H_
