// What a memory plan says is gathered at once is what an executor that follows its record gathers.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"
#include "worker/engine/order_tracker.h"

namespace tessera {
namespace {

ModelLayout RandomModel(std::mt19937* random) {
  ModelSpec model;
  const int num_units = std::uniform_int_distribution<int>(1, 9)(*random);
  for (int unit = 0; unit < num_units; ++unit) {
    UnitSpec& spec = model.units.emplace_back();
    spec.name = absl::StrCat("u", unit);
    TensorSpec& parameter = spec.parameters.emplace_back();
    parameter.name = absl::StrCat("u", unit, ".w");
    parameter.shape = {std::uniform_int_distribution<int64_t>(1, 300)(*random)};
  }
  LayoutOptions options;
  options.shard_alignment_bytes = 0;
  ModelLayout layout = ModelLayout::Create(model, options, 2).value();
  for (UnitLayout& unit : layout.units) {
    unit.strategy = (*random)() % 3 == 0 ? Strategy::kShardGradOp : Strategy::kFullShard;
  }
  return layout;
}

// Unshards of a step: the root once, the others before their forward and before their backward.
std::vector<int> OrderOf(const ModelLayout& layout) {
  const int num_units = static_cast<int>(layout.units.size());
  std::vector<int> order;
  for (int unit = 0; unit < num_units; ++unit) order.push_back(unit);
  for (int unit = num_units - 1; unit > 0; --unit) order.push_back(unit);
  return order;
}

// The most bytes that are gathered at once in a step as recorded: what stays, the unit in hand, and
// what the tracker permits to gather ahead of it.
int64_t MostGathered(const ModelLayout& layout, const GatherLimit& limit) {
  OrderTracker tracker;
  const std::vector<int> order = OrderOf(layout);
  for (const int unit : order) tracker.Issued({OpKind::kUnshard, unit, DType::kFp32, 1});
  tracker.StepCommitted();
  std::set<int> resident = {0};
  for (size_t unit = 1; unit < layout.units.size(); ++unit) {
    if (!ReshardsAfterForward(layout.units[unit].strategy)) resident.insert(unit);
  }
  int64_t most = 0;
  std::vector<int> upcoming;
  for (const int unit : order) {
    tracker.Issued({OpKind::kUnshard, unit, DType::kFp32, 1});
    tracker.UpcomingUnshards(limit, &upcoming);
    std::set<int> alive = resident;
    alive.insert(unit);
    alive.insert(upcoming.begin(), upcoming.end());
    int64_t bytes = 0;
    for (const int each : alive) bytes += limit.unit_bytes[each];
    most = std::max(most, bytes);
  }
  return most;
}

TEST(GatherPlanTest, PlanIsWhatAnExecutorThatFollowsItsRecordGathersAtOnce) {
  std::mt19937 random(20260611);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const ModelLayout layout = RandomModel(&random);
    GatherLimit limit;
    for (const UnitLayout& unit : layout.units) {
      limit.unit_bytes.push_back(unit.shards.padded_numel() * SizeBytes(DType::kFp32));
    }
    limit.max_units = std::uniform_int_distribution<int>(1, 6)(random);
    limit.max_bytes =
        random() % 4 == 0 ? 0 : std::uniform_int_distribution<int64_t>(1, 3000)(random);
    MemoryOptions options;
    options.ranks_per_host = 1;  // So that gathering takes memory.
    options.max_gathered_units = limit.max_units;
    options.max_gathered_bytes = limit.max_bytes;
    ASSERT_OK_AND_ASSIGN(const MemoryPlan plan, PlanMemory(layout, options));
    EXPECT_EQ(plan.unsharded_parameter_bytes, MostGathered(layout, limit));
  }
}

}  // namespace
}  // namespace tessera
