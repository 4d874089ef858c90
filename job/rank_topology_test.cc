#include "job/rank_topology.h"

#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RankTopologyTest, KnowsHostsAgentsAndPeersOfUnevenHosts) {
  ASSERT_OK_AND_ASSIGN(const RankTopology t, RankTopology::Create({"a", "a", "a", "b", "b"}));
  EXPECT_EQ(t.world_size(), 5);
  EXPECT_EQ(t.num_hosts(), 2);
  EXPECT_EQ(t.HostOf(2), 0);
  EXPECT_EQ(t.HostOf(3), 1);
  EXPECT_EQ(t.FirstRank(1), 3);
  EXPECT_EQ(t.NumRanks(1), 2);
  EXPECT_EQ(t.LocalIndex(4), 1);
  EXPECT_EQ(t.Agent(1, 1), 4);
  EXPECT_EQ(t.Agent(1, 2), 3);
  EXPECT_THAT(t.ServedBy(3), ElementsAre(0, 2));
  EXPECT_THAT(t.Peers(3), ElementsAre(0, 2));
  EXPECT_THAT(t.Peers(2), ElementsAre(3));
  EXPECT_THAT(t.ServedBy(2), ElementsAre());
}

TEST(RankTopologyTest, OneHostHasNoPeers) {
  const RankTopology t = RankTopology::OneHost(3);
  EXPECT_EQ(t.num_hosts(), 1);
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(t.Peers(rank), ElementsAre());
}

TEST(RankTopologyTest, EveryRankHasOneAgentOnEachOtherHostAndPeersAreMutual) {
  for (const std::string hosts :
       {"ab", "aabb", "aaab", "abbb", "aabbbcdd", "abcdefgh", "aaaabbc"}) {
    SCOPED_TRACE(hosts);
    std::vector<std::string> by_rank;
    for (const char host : hosts) by_rank.emplace_back(1, host);
    ASSERT_OK_AND_ASSIGN(const RankTopology t, RankTopology::Create(by_rank));
    std::vector<int> times_served(t.world_size(), 0);
    for (int rank = 0; rank < t.world_size(); ++rank) {
      for (const int served : t.ServedBy(rank)) {
        EXPECT_EQ(t.Agent(t.HostOf(rank), served), rank);
        ++times_served[served];
      }
      for (const int peer : t.Peers(rank)) {
        EXPECT_NE(t.HostOf(peer), t.HostOf(rank));
        const std::vector<int> back = t.Peers(peer);
        EXPECT_TRUE(std::binary_search(back.begin(), back.end(), rank)) << rank << " " << peer;
      }
    }
    for (const int times : times_served) EXPECT_EQ(times, t.num_hosts() - 1);
  }
}

TEST(RankTopologyTest, RanksOfAHostThatAreApartAreRefusedByName) {
  EXPECT_THAT(RankTopology::Create({"a", "b", "a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 is on 'a'")));
  EXPECT_THAT(RankTopology::Create({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without ranks")));
}

}  // namespace
}  // namespace tessera
