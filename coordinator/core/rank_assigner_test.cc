#include "coordinator/core/rank_assigner.h"

#include <random>

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

MemberRegistry Members(const std::vector<std::pair<std::string, int32_t>>& workers) {
  MemberRegistry members;
  for (const auto& [id, num_devices] : workers) {
    Member member;
    member.incarnation = Incarnation(1);
    member.num_devices = num_devices;
    members.Put(WorkerId(id), member);
  }
  return members;
}

std::string Text(const std::vector<RankPlacement>& placements) {
  std::string text;
  for (const RankPlacement& p : placements) {
    text += p.worker.value() + std::to_string(p.device) + " ";
  }
  return text;
}

TEST(RankAssignerTest, RanksFollowWorkerIdsAndDevices) {
  const auto placed = AssignRanks(Members({{"b", 2}, {"a", 2}}), {}, {}, 3);
  ASSERT_TRUE(placed.has_value());
  EXPECT_EQ(Text(*placed), "a0 a1 b0 ");
}

TEST(RankAssignerTest, TooFewFreeDevicesPlaceNobody) {
  MemberRegistry members = Members({{"a", 2}, {"b", 2}});
  EXPECT_FALSE(AssignRanks(members, {}, {}, 5).has_value());
  EXPECT_FALSE(AssignRanks(members, {{WorkerId("a"), 1}}, {}, 4).has_value());
  Member lost = *members.Find(WorkerId("b"));
  lost.lost = true;
  members.Put(WorkerId("b"), lost);
  EXPECT_FALSE(AssignRanks(members, {}, {}, 3).has_value());
  EXPECT_EQ(CountFreeDevices(members, {{WorkerId("a"), 1}}), 1);
}

TEST(RankAssignerTest, RanksStayWhereTheirDeviceIsStillThere) {
  const auto before = AssignRanks(Members({{"b", 2}, {"c", 2}}), {}, {}, 4);
  // "b" is gone, "a" and "d" came: ranks 2 and 3 stay on "c".
  const auto after = AssignRanks(Members({{"a", 1}, {"c", 2}, {"d", 4}}), {}, *before, 4);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(Text(*after), "a0 d0 c0 c1 ");
}

TEST(RankAssignerTest, EveryRankHasItsOwnLiveUnclaimedDevice) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<std::pair<std::string, int32_t>> workers;
    for (char id = 'a'; id < 'g'; ++id) {
      if (random() % 3 > 0) workers.emplace_back(std::string(1, id), 1 + random() % 4);
    }
    const MemberRegistry members = Members(workers);
    std::set<DeviceId> claimed;
    for (const auto& [id, n] : workers) {
      for (int32_t d = 0; d < n; ++d) {
        if (random() % 4 == 0) claimed.emplace(WorkerId(id), d);
      }
    }
    const int32_t world_size = 1 + random() % 8;
    std::vector<RankPlacement> previous(world_size);
    for (RankPlacement& p : previous) {
      p = {WorkerId(std::string(1, 'a' + random() % 6)), static_cast<int32_t>(random() % 4),
           Incarnation(0)};
    }
    const auto placed = AssignRanks(members, claimed, previous, world_size);
    ASSERT_EQ(placed.has_value(), CountFreeDevices(members, claimed) >= world_size);
    if (!placed.has_value()) continue;
    std::set<DeviceId> used;
    for (const RankPlacement& p : *placed) {
      EXPECT_TRUE(members.IsLive(p.worker, p.incarnation));
      EXPECT_LT(p.device, members.Find(p.worker)->num_devices);
      EXPECT_EQ(claimed.count({p.worker, p.device}), 0);
      EXPECT_TRUE(used.emplace(p.worker, p.device).second);
    }
  }
}

}  // namespace
}  // namespace tessera::coordinator
