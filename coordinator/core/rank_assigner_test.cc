#include "coordinator/core/rank_assigner.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_split.h"
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

PlacementRequest Request(int32_t world_size, PlacementRule rule) {
  PlacementRequest request;
  request.world_size = world_size;
  request.rule = rule;
  return request;
}

// "a0 a1 b0" -> where ranks were.
std::vector<RankPlacement> Were(const std::string& text) {
  std::vector<RankPlacement> placements;
  for (absl::string_view one : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    placements.push_back({WorkerId(std::string(one.substr(0, 1))), one[1] - '0', Incarnation(1)});
  }
  return placements;
}

struct Case {
  const char* what;
  std::vector<std::pair<std::string, int32_t>> workers;
  std::string claimed;  // By other jobs.
  std::string avoided;  // Worker ids.
  std::string previous;
  int32_t world_size;
  std::string on_one;    // Placement by kOneWorker; empty: none.
  std::string shortage;  // What it waits for then.
};

class OneWorkerTest : public testing::TestWithParam<Case> {};

TEST_P(OneWorkerTest, AllRanksAreOnOneWorkerOrTheJobSaysWhatItWaitsFor) {
  const Case& c = GetParam();
  const MemberRegistry members = Members(c.workers);
  PlacementRequest request = Request(c.world_size, PlacementRule::kOneWorker);
  for (const RankPlacement& p : Were(c.claimed))
    request.claimed.devices.emplace(p.worker, p.device);
  for (char id : c.avoided) request.avoided.insert(WorkerId(std::string(1, id)));
  request.previous = Were(c.previous);
  const auto placed = AssignRanks(members, request);
  ASSERT_EQ(placed.has_value(), !c.on_one.empty());
  if (placed.has_value()) {
    EXPECT_EQ(Text(*placed), c.on_one + " ");
  } else {
    EXPECT_EQ(DescribeShortage(members, request), c.shortage);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, OneWorkerTest,
    testing::Values(
        Case{"Fits", {{"a", 2}}, "", "", "", 2, "a0 a1", ""},
        Case{"NotOnTwoTogether",
             {{"a", 3}, {"b", 2}},
             "",
             "",
             "",
             4,
             "",
             "needs 4 devices on one worker; largest free: 3 on 'a'"},
        Case{"NobodyIsThere",
             {},
             "",
             "",
             "",
             1,
             "",
             "needs 1 devices on one worker; largest free: none"},
        Case{"ClaimedDevicesDoNotCount",
             {{"a", 2}, {"b", 2}},
             "a0 b1",
             "",
             "",
             2,
             "",
             "needs 2 devices on one worker; largest free: 1 on 'a'"},
        Case{"BesideAnotherJob", {{"a", 4}}, "a0 a2", "", "", 2, "a1 a3", ""},
        Case{"TheFullestThatFits", {{"a", 8}, {"b", 2}, {"c", 2}}, "", "", "", 2, "b0 b1", ""},
        Case{"FullestByWhatIsFree", {{"a", 4}, {"b", 3}}, "a0 a1", "", "", 2, "a2 a3", ""},
        Case{"StaysWhereItWas", {{"a", 2}, {"b", 4}}, "", "", "b3 b1", 2, "b3 b1", ""},
        Case{"StaysThoughADeviceIsGone", {{"b", 2}}, "", "", "b3 b1", 2, "b0 b1", ""},
        Case{"MovesAsAWholeWhenItDoesNotFitAnyMore",
             {{"a", 2}, {"b", 2}},
             "b0",
             "",
             "b0 b1",
             2,
             "a0 a1",
             ""},
        Case{"AvoidsWhoDoesNotAnswer", {{"a", 2}, {"b", 3}}, "", "a", "a0 a1", 2, "b0 b1", ""},
        Case{"SaysWhoIsLeftOut",
             {{"a", 4}, {"b", 1}},
             "",
             "a",
             "a0 a1",
             2,
             "",
             "needs 2 devices on one worker; largest free: 1 on 'b'; 'a' is left out"}),
    [](const auto& info) { return info.param.what; });

// All of these workers reach others, except those in `alone`.
MemberRegistry Reaching(const std::vector<std::pair<std::string, int32_t>>& workers,
                        const std::string& alone = "") {
  MemberRegistry members = Members(workers);
  for (const auto& [id, num_devices] : workers) {
    Member member = *members.Find(WorkerId(id));
    if (alone.find(id) == std::string::npos) member.data_host = "10.0.0.1";
    members.Put(WorkerId(id), member);
  }
  return members;
}

TEST(RankAssignerTest, JobThatNoWorkerHasRoomForGoesToAsFewAsPossibleThatReachEachOther) {
  const auto place = [](const MemberRegistry& members, int32_t world_size) {
    const auto placed = AssignRanks(members, Request(world_size, PlacementRule::kOneWorkerFirst));
    return placed.has_value() ? Text(*placed) : "none";
  };
  const MemberRegistry members = Reaching({{"a", 1}, {"b", 2}, {"c", 2}, {"d", 4}}, "d");
  EXPECT_EQ(place(members, 2), "b0 b1 ");
  EXPECT_EQ(place(members, 3), "d0 d1 d2 ") << "one worker, also one that reaches no other";
  EXPECT_EQ(place(members, 5), "a0 b0 b1 c0 c1 ");
  EXPECT_EQ(place(Reaching({{"a", 1}, {"b", 2}, {"c", 2}}), 4), "b0 b1 c0 c1 ");
  EXPECT_EQ(place(members, 6), "none");
  EXPECT_EQ(DescribeShortage(members, Request(6, PlacementRule::kOneWorkerFirst)),
            "needs 6 devices on one worker; largest free: 4 on 'd'; on workers whose ranks reach "
            "each other: 5");
}

TEST(RankAssignerTest, RanksOnSeveralWorkersStayIfAllOfThemCan) {
  PlacementRequest request = Request(3, PlacementRule::kOneWorkerFirst);
  request.previous = Were("b0 b1 c1");
  EXPECT_EQ(Text(*AssignRanks(Reaching({{"a", 2}, {"b", 2}, {"c", 2}}), request)), "b0 b1 c1 ");
  EXPECT_EQ(Text(*AssignRanks(Reaching({{"a", 2}, {"c", 2}}), request)), "a0 a1 c0 ");
}

TEST(RankAssignerTest, SpreadRanksFollowWorkerIdsAndDevices) {
  const auto placed =
      AssignRanks(Members({{"b", 2}, {"a", 2}}), Request(3, PlacementRule::kSpread));
  ASSERT_TRUE(placed.has_value());
  EXPECT_EQ(Text(*placed), "a0 a1 b0 ");
}

TEST(RankAssignerTest, TooFewFreeDevicesPlaceNobody) {
  MemberRegistry members = Members({{"a", 2}, {"b", 2}});
  EXPECT_FALSE(AssignRanks(members, Request(5, PlacementRule::kSpread)).has_value());
  PlacementRequest request = Request(4, PlacementRule::kSpread);
  request.claimed.devices = {{WorkerId("a"), 1}};
  EXPECT_FALSE(AssignRanks(members, request).has_value());
  Member lost = *members.Find(WorkerId("b"));
  lost.lost = true;
  members.Put(WorkerId("b"), lost);
  EXPECT_FALSE(AssignRanks(members, Request(3, PlacementRule::kSpread)).has_value());
  EXPECT_FALSE(AssignRanks(members, Request(3, PlacementRule::kOneWorker)).has_value());
  EXPECT_EQ(DescribeShortage(members, request), "needs 4 devices, 1 registered are free");
}

TEST(RankAssignerTest, SpreadRanksStayWhereTheirDeviceIsStillThere) {
  PlacementRequest request = Request(4, PlacementRule::kSpread);
  request.previous = *AssignRanks(Members({{"b", 2}, {"c", 2}}), request);
  // "b" is gone, "a" and "d" came: ranks 2 and 3 stay on "c".
  const auto after = AssignRanks(Members({{"a", 1}, {"c", 2}, {"d", 4}}), request);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(Text(*after), "a0 d0 c0 c1 ");
}

// A job of groups, each on its own worker.
PlacementRequest Groups(int32_t world_size, int32_t ranks_per_worker) {
  PlacementRequest request = Request(world_size, PlacementRule::kOneWorkerFirst);
  request.ranks_per_worker = ranks_per_worker;
  return request;
}

TEST(RankAssignerTest, GroupsHaveWorkersOfTheirOwnThoughOneHasRoomForAll) {
  const MemberRegistry members = Reaching({{"a", 8}, {"b", 2}, {"c", 3}});
  const auto placed = AssignRanks(members, Groups(4, 2));
  ASSERT_TRUE(placed.has_value());
  EXPECT_EQ(Text(*placed), "b0 b1 c0 c1 ") << "the fullest that fit";
  const auto all = AssignRanks(members, Groups(6, 2));
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(Text(*all), "a0 a1 b0 b1 c0 c1 ");
}

TEST(RankAssignerTest, OneGroupIsOnOneWorkerWhetherOrNotItReachesOthers) {
  const auto placed = AssignRanks(Members({{"a", 1}, {"b", 2}}), Groups(2, 2));
  ASSERT_TRUE(placed.has_value());
  EXPECT_EQ(Text(*placed), "b0 b1 ");
  EXPECT_FALSE(AssignRanks(Reaching({{"a", 1}, {"b", 1}}), Groups(2, 2)).has_value());
}

TEST(RankAssignerTest, GroupsStayWhereTheyWere) {
  const MemberRegistry members = Reaching({{"a", 4}, {"b", 2}, {"c", 4}});
  PlacementRequest request = Groups(4, 2);
  request.previous = Were("a2 a3 c0 c1");
  const auto placed = AssignRanks(members, request);
  ASSERT_TRUE(placed.has_value());
  EXPECT_EQ(Text(*placed), "a2 a3 c0 c1 ");
}

TEST(RankAssignerTest, GroupThatIsGoneGoesBackOrElsewhereAndTheOthersStay) {
  PlacementRequest request = Groups(6, 2);
  request.previous = Were("a0 a1 c0 c1 b2 b3");
  const auto after = [&](const MemberRegistry& members, const std::set<WorkerId>& kept) {
    const auto placed = ReplaceGroups(members, request, kept);
    return placed.has_value() ? Text(*placed) : "none";
  };
  const MemberRegistry all = Reaching({{"a", 2}, {"b", 4}, {"c", 2}, {"d", 2}});
  EXPECT_EQ(after(all, {WorkerId("a"), WorkerId("b")}), "a0 a1 c0 c1 b2 b3 ");
  EXPECT_EQ(after(all, {WorkerId("b")}), "a0 a1 c0 c1 b2 b3 ");
  const MemberRegistry without_c = Reaching({{"a", 2}, {"b", 4}, {"d", 2}});
  EXPECT_EQ(after(without_c, {WorkerId("a"), WorkerId("b")}), "a0 a1 d0 d1 b2 b3 ");
  // The free devices of "b" have no room for another group.
  const MemberRegistry of_two = Reaching({{"a", 2}, {"b", 4}});
  EXPECT_EQ(after(of_two, {WorkerId("a"), WorkerId("b")}), "none");
  request.claimed.devices.emplace(WorkerId("d"), 1);
  EXPECT_EQ(after(without_c, {WorkerId("a"), WorkerId("b")}), "none");
}

TEST(RankAssignerTest, GroupsWithoutRoomSayHowManyWorkersHaveIt) {
  const MemberRegistry members = Reaching({{"a", 3}, {"b", 2}, {"c", 1}, {"d", 4}}, "d");
  const PlacementRequest request = Groups(6, 2);
  EXPECT_FALSE(AssignRanks(members, request).has_value());
  EXPECT_EQ(DescribeShortage(members, request),
            "needs 3 workers with 2 free devices each, whose ranks reach each other; there are 2");
}

// A worker whose ranks cannot share its GPU holds one rank per job, however many jobs.
TEST(RankAssignerTest, WorkerHoldsNoMoreRanksOfAJobThanItSaysAndKeepsThoseThatItHas) {
  MemberRegistry members = Reaching({{"a", 4}, {"b", 2}, {"c", 2}});
  for (const char* id : {"a", "b"}) {
    Member member = *members.Find(WorkerId(id));
    member.max_ranks_of_job = 1;
    member.device = "GPU-7";
    members.Put(WorkerId(id), member);
  }
  PlacementRequest request = Request(2, PlacementRule::kOneWorkerFirst);
  EXPECT_EQ(Text(*AssignRanks(members, request)), "c0 c1 ");
  request.claimed.devices = {{WorkerId("c"), 0}, {WorkerId("a"), 0}};
  EXPECT_EQ(Text(*AssignRanks(members, request)), "a1 b0 ");
  request.claimed.devices.insert({WorkerId("a"), 1});
  EXPECT_EQ(Text(*AssignRanks(members, request)), "a2 b0 ");
  request.previous = Were("a3 c1");
  EXPECT_EQ(Text(*AssignRanks(members, request)), "a3 c1 ");
  request.previous.clear();
  request.world_size = 4;
  EXPECT_FALSE(AssignRanks(members, request).has_value());
  EXPECT_EQ(DescribeShortage(members, request),
            "needs 4 devices on one worker; largest free: 1 on 'a'; on workers whose ranks reach "
            "each other: 3; 'a' holds 1 rank of a job: GPU-7; 'b' holds 1 rank of a job: GPU-7");
}

TEST(RankAssignerTest, JobsOfOneProgramLieAlikeOnWorkersThatHoldSoManyRanksOfEach) {
  MemberRegistry members = Reaching({{"a", 6}, {"b", 6}});
  for (const char* id : {"a", "b"}) {
    Member member = *members.Find(WorkerId(id));
    member.max_ranks_of_job = 2;
    members.Put(WorkerId(id), member);
  }
  PlacementRequest request = Request(4, PlacementRule::kOneWorkerFirst);
  for (const char* places : {"a0 a1 b0 b1 ", "a2 a3 b2 b3 ", "a4 a5 b4 b5 "}) {
    const auto placements = AssignRanks(members, request);
    ASSERT_TRUE(placements.has_value());
    EXPECT_EQ(Text(*placements), places);
    for (const RankPlacement& place : *placements)
      request.claimed.devices.insert({place.worker, place.device});
  }
  request.claimed.devices.clear();
  request.world_size = 5;
  EXPECT_EQ(DescribeShortage(members, request),
            "needs 5 devices on one worker; largest free: 2 on 'a'; on workers whose ranks reach "
            "each other: 4; 'a' holds 2 ranks of a job; 'b' holds 2 ranks of a job");
}

// Whether the rule finds room, by trying: the reference for the property below.
bool HasRoom(const MemberRegistry& members, const PlacementRequest& request) {
  int64_t together = 0, largest = 0;
  for (const auto& [worker, member] : members.members()) {
    int64_t free = 0;
    for (int32_t d = 0; d < member.num_devices; ++d)
      free += request.claimed.devices.count({worker, d}) == 0;
    together += free;
    largest = std::max(largest, free);
  }
  return (request.rule == PlacementRule::kSpread ? together : largest) >= request.world_size;
}

class EveryRuleTest : public testing::TestWithParam<PlacementRule> {};

TEST_P(EveryRuleTest, EveryRankHasItsOwnLiveUnclaimedDevice) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<std::pair<std::string, int32_t>> workers;
    for (char id = 'a'; id < 'g'; ++id) {
      if (random() % 3 > 0) workers.emplace_back(std::string(1, id), 1 + random() % 4);
    }
    const MemberRegistry members = Members(workers);
    PlacementRequest request = Request(1 + random() % 8, GetParam());
    for (const auto& [id, n] : workers) {
      for (int32_t d = 0; d < n; ++d) {
        if (random() % 4 == 0) request.claimed.devices.emplace(WorkerId(id), d);
      }
    }
    request.previous.resize(request.world_size);
    for (RankPlacement& p : request.previous) {
      p = {WorkerId(std::string(1, 'a' + random() % 6)), static_cast<int32_t>(random() % 4),
           Incarnation(0)};
    }
    const auto placed = AssignRanks(members, request);
    ASSERT_EQ(placed.has_value(), HasRoom(members, request));
    if (!placed.has_value()) continue;
    std::set<DeviceId> used;
    std::set<WorkerId> used_workers;
    for (const RankPlacement& p : *placed) {
      EXPECT_TRUE(members.IsLive(p.worker, p.incarnation));
      EXPECT_LT(p.device, members.Find(p.worker)->num_devices);
      EXPECT_EQ(request.claimed.devices.count({p.worker, p.device}), 0);
      EXPECT_TRUE(used.emplace(p.worker, p.device).second);
      used_workers.insert(p.worker);
    }
    if (GetParam() == PlacementRule::kOneWorker) {
      EXPECT_EQ(used_workers.size(), 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryRuleTest,
                         testing::Values(PlacementRule::kOneWorker, PlacementRule::kSpread));

}  // namespace
}  // namespace tessera::coordinator
