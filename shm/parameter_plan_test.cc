#include "shm/parameter_plan.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

struct Job {
  JobConfig config;
  ModelLayout layout;
  JobMemory memory;
};

absl::StatusOr<Job> MakeJob(const ModelSpec& model, const JobConfig& config) {
  Job job;
  job.config = config;
  ASSIGN_OR_RETURN(job.layout, ModelLayout::Create(model, config.layout, config.world_size));
  for (UnitLayout& unit : job.layout.units) unit.strategy = config.strategy;
  ASSIGN_OR_RETURN(job.memory, JobMemory::Create(job.layout, config));
  return job;
}

absl::StatusOr<ParameterPlan> SlotsOf(const Job& job) {
  return ParameterPlan::InSlots(job.layout, job.config, job.memory);
}

ModelSpec ModelOf(const std::vector<std::string>& units) {
  ModelSpec model;
  for (const std::string& name : units)
    model.units.push_back({name, {{name + ".w", {30, 7}, DType::kFp32}}});
  return model;
}

JobConfig Config(int world_size, int max_gathered_units = 1) {
  JobConfig config;
  config.world_size = world_size;
  config.max_gathered_units = max_gathered_units;
  return config;
}

TEST(ParameterPlanTest, UnitsThatFollowEachOtherNeverShareASlot) {
  ASSERT_OK_AND_ASSIGN(const Job job,
                       MakeJob(ModelOf({"root", "a", "b", "c", "d", "e", "f"}), Config(2)));
  ASSERT_OK_AND_ASSIGN(const ParameterPlan plan, SlotsOf(job));
  EXPECT_EQ(plan.num_slots(), 3) << "one ahead, one in hand, one that is being closed";
  EXPECT_EQ(plan.slot(0), -1) << "the root stays";
  for (int unit = 1; unit < 7; ++unit) EXPECT_EQ(plan.slot(unit), (unit - 1) % 3);
}

TEST(ParameterPlanTest, UnitWithOthersWithinHasItsPlace) {
  ASSERT_OK_AND_ASSIGN(
      const Job job, MakeJob(ModelOf({"root", "a", "a.x", "a.y", "b", "ab", "c", "d"}), Config(2)));
  ASSERT_OK_AND_ASSIGN(const ParameterPlan plan, SlotsOf(job));
  EXPECT_EQ(plan.slot(1), -1);
  for (const int unit : {2, 3, 4, 5, 6, 7}) EXPECT_GE(plan.slot(unit), 0) << unit;
}

TEST(ParameterPlanTest, WhereNothingIsSavedEverythingHasItsPlace) {
  const ModelSpec model = ModelOf({"root", "a", "b", "c"});
  std::vector<std::pair<std::string, JobConfig>> cases;
  cases.emplace_back("as many slots as units", Config(2));
  cases.emplace_back("gathered once a step", Config(2));
  cases.back().second.strategy = Strategy::kShardGradOp;
  cases.emplace_back("kept by each rank", Config(2));
  cases.back().second.reshard_group_size = 1;
  for (const auto& [what, config] : cases) {
    ASSERT_OK_AND_ASSIGN(const Job job, MakeJob(model, config));
    ASSERT_OK_AND_ASSIGN(const ParameterPlan plan, SlotsOf(job));
    EXPECT_EQ(plan.num_slots(), 0) << what;
    EXPECT_EQ(plan.region_bytes(), job.memory.parameter_region_bytes()) << what;
    for (size_t unit = 0; unit < model.units.size(); ++unit)
      EXPECT_EQ(plan.units()[unit].offset_bytes, job.memory.units()[unit].parameter_offset_bytes);
  }
}

TEST(ParameterPlanTest, ThereAreNoMoreSlotsThanDescriptorsForThemButAlwaysAWayToPlaces) {
  std::vector<std::string> names = {"root"};
  for (int i = 0; i < 48; ++i) names.push_back(absl::StrCat("u", i));
  for (const auto& [max_gathered_units, num_slots] :
       {std::pair(30, 32), std::pair(45, ParameterPlan::kMaxSlots), std::pair(46, 0)}) {
    ASSERT_OK_AND_ASSIGN(const Job job, MakeJob(ModelOf(names), Config(2, max_gathered_units)));
    ASSERT_OK_AND_ASSIGN(const ParameterPlan plan, SlotsOf(job));
    EXPECT_EQ(plan.num_slots(), num_slots) << max_gathered_units;
  }
}

TEST(ParameterPlanTest, OnlyRanksThatAreAloneOnTheirGpuHaveSlots) {
  ASSERT_OK_AND_ASSIGN(const Job job,
                       MakeJob(ModelOf({"root", "a", "b", "c", "d", "e"}), Config(4)));
  const auto slots = [&](const std::vector<std::string>& workers, bool on_gpu) {
    const absl::StatusOr<RankTopology> topology = RankTopology::Create(workers);
    const auto plan = ParameterPlan::Of(job.layout, job.config, job.memory, *topology, on_gpu);
    return plan.ok() ? plan->num_slots() : -1;
  };
  EXPECT_EQ(slots({"a", "b", "c", "d"}, true), 3);
  EXPECT_EQ(slots({"a", "b", "c", "d"}, false), 0);
  EXPECT_EQ(slots({"a", "a", "b", "b"}, true), 0);
  EXPECT_EQ(slots({"a", "a", "a", "a"}, true), 0);
}

// Over random models: what a rank publishes is in the region, aligned, and nothing overlaps;
// each slot has room for each of its units, in full precision too.
TEST(ParameterPlanTest, PlacesOverlapNowhereAndSlotsHoldTheirUnits) {
  const int seed = 29;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    ModelSpec model;
    const int num_units = 2 + random() % 12;
    for (int u = 0; u < num_units; ++u) {
      UnitSpec& unit = model.units.emplace_back();
      unit.name = u > 1 && random() % 4 == 0 ? absl::StrCat(model.units[u - 1].name, ".in")
                                             : absl::StrCat("u", u);
      for (int p = 0; p <= static_cast<int>(random() % 3); ++p)
        unit.parameters.push_back({absl::StrCat(unit.name, ".", u, ".", p),
                                   {static_cast<int64_t>(random() % 300), 5},
                                   DType::kFp32});
    }
    JobConfig config = Config(1 + random() % 6, 1 + random() % 4);
    config.compute_dtype = random() % 2 == 0 ? DType::kFp32 : DType::kBf16;
    config.layout.alignment_dtype = config.compute_dtype;
    ASSERT_OK_AND_ASSIGN(const Job job, MakeJob(model, config));
    ASSERT_OK_AND_ASSIGN(const ParameterPlan plan, SlotsOf(job));
    std::set<std::pair<int64_t, int64_t>> taken;
    for (int u = 0; u < num_units; ++u) {
      const ParameterPlan::Unit& at = plan.units()[u];
      const UnitMemory& unit = job.memory.units()[u];
      if (at.slot >= 0) {
        ASSERT_LT(at.slot, plan.num_slots());
        EXPECT_GE(plan.slot_bytes(), std::max(unit.parameter_bytes, unit.full_bytes));
        const int64_t slice =
            job.layout.units[u].shards.shard_numel() * SizeBytes(unit.compute_dtype);
        taken.emplace(at.own_offset_bytes, at.own_offset_bytes + slice);
        EXPECT_EQ(at.own_offset_bytes % 512, 0);
        continue;
      }
      taken.emplace(at.offset_bytes, at.offset_bytes + unit.parameter_bytes);
      if (at.full_offset_bytes != at.offset_bytes)
        taken.emplace(at.full_offset_bytes, at.full_offset_bytes + unit.full_bytes);
    }
    int64_t end = 0;
    for (const auto& [from, to] : taken) {
      EXPECT_GE(from, end);
      end = to;
    }
    EXPECT_LE(end, plan.region_bytes());
  }
}

TEST(LocateParametersTest, OwnSliceIsPartOfThePlaceOrOutsideOfTheSlot) {
  ASSERT_OK_AND_ASSIGN(const Job job, MakeJob(ModelOf({"root", "a", "b", "c", "d"}), Config(2)));
  ASSERT_OK_AND_ASSIGN(const ParameterPlan plan, SlotsOf(job));
  ASSERT_EQ(plan.num_slots(), 3);
  std::vector<std::byte> region(plan.region_bytes()), slot(plan.slot_bytes());
  const std::vector<std::byte*> slots = {nullptr, slot.data(), slot.data() + 1, slot.data() + 2,
                                         slot.data()};
  const auto units = LocateParameters(plan, job.layout, job.memory, Rank(1), region.data(), slots);
  const int64_t slice = job.layout.units[0].shards.shard_numel() * 4;
  EXPECT_EQ(units[0].own_slice, units[0].unsharded + slice);
  EXPECT_EQ(units[4].unsharded, slot.data());
  EXPECT_EQ(units[4].full, slot.data());
  EXPECT_EQ(units[4].own_slice, region.data() + plan.units()[4].own_offset_bytes);
}

}  // namespace
}  // namespace tessera
