#include "job/live_tensors.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec SmallModel() {
  ModelSpec model;
  model.units.push_back({"root", {{"a", {5, 3}}, {"b", {7}}}});
  model.units.push_back({"u", {{"c", {2}}, {"d", {0}}, {"e", {11}, DType::kFp32, false}}});
  return model;
}

ModelLayout LayoutOf(const JobConfig& config) { return *LayOut(SmallModel(), config); }

JobConfig ConfigOf(int world_size, Strategy strategy = Strategy::kFullShard, int group_size = 0) {
  JobConfig config;
  config.world_size = world_size;
  config.strategy = strategy;
  config.shard_group_size = group_size;
  return config;
}

std::vector<std::string> NamesOf(OptimizerKind optimizer, const std::vector<int>& parameters) {
  const ModelLayout layout = LayoutOf(ConfigOf(2));
  std::vector<std::string> names;
  const auto tensors = *LiveTensors(layout, optimizer, parameters, /*moments=*/true);
  for (const LiveTensor& tensor : tensors)
    names.push_back(LiveTensorName(layout, optimizer, tensor));
  return names;
}

TEST(LiveTensorsTest, MomentsFollowTheirParameterAndFrozenOnesHaveNone) {
  EXPECT_THAT(NamesOf(OptimizerKind::kAdamW, {1, 4}),
              ElementsAre("b", "state.b.exp_avg", "state.b.exp_avg_sq", "e"));
  EXPECT_THAT(NamesOf(OptimizerKind::kSgd, {1, 2}),
              ElementsAre("b", "state.b.momentum_buffer", "c", "state.c.momentum_buffer"));
}

TEST(LiveTensorsTest, BuffersComeLastWholeFromRank0AndEmptyOnesHaveNoSlice) {
  ModelSpec model = SmallModel();
  model.buffers = {{"mean", StoredDType::kF64, {4}},
                   {"none", StoredDType::kBool, {0, 2}},
                   {"count", StoredDType::kI64, {}}};
  const ModelLayout layout = *LayOut(model, ConfigOf(3));
  const auto tensors =
      *LiveTensors(layout, OptimizerKind::kSgd, {2}, /*moments=*/true, /*buffers=*/{0, 1, 2});
  std::vector<std::string> names;
  for (const LiveTensor& tensor : tensors)
    names.push_back(LiveTensorName(layout, OptimizerKind::kSgd, tensor));
  EXPECT_THAT(names, ElementsAre("c", "state.c.momentum_buffer", "mean", "none", "count"));
  EXPECT_THAT(ShapeOf(layout, tensors[2]), ElementsAre(4));
  const auto slices_of = [&](int first_rank, int end_rank) {
    std::vector<std::pair<int, int64_t>> slices;
    EXPECT_OK(ForEachLiveSlice(layout, tensors, first_rank, end_rank, [&](const LiveSlice& slice) {
      if (slice.tensor < 2) return absl::OkStatus();
      EXPECT_EQ(slice.rank, 0);
      EXPECT_EQ(slice.begin_elements, 0);
      slices.emplace_back(slice.tensor, slice.numel);
      return absl::OkStatus();
    }));
    return slices;
  };
  using Slice = std::pair<int, int64_t>;
  EXPECT_THAT(slices_of(0, 3), ElementsAre(Slice(2, 4), Slice(4, 1)));
  EXPECT_THAT(slices_of(0, 1), ElementsAre(Slice(2, 4), Slice(4, 1)));
  EXPECT_THAT(slices_of(1, 3), ElementsAre());
  for (const std::vector<int>& numbers : {std::vector<int>{3}, {-1}, {2, 1}, {1, 1}}) {
    EXPECT_THAT(LiveTensors(layout, OptimizerKind::kSgd, {}, false, numbers),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 3")));
  }
}

TEST(LiveTensorsTest, NumbersThatAreNoParametersAreRefused) {
  const ModelLayout layout = LayoutOf(ConfigOf(2));
  for (const std::vector<int>& numbers : {std::vector<int>{5}, {-1}, {2, 1}, {1, 1}}) {
    EXPECT_THAT(LiveTensors(layout, OptimizerKind::kAdamW, numbers, false),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 5")));
  }
}

// Every element once, in the order of offsets, whatever the world and strategy; and a worker's own
// slices are those of all that are its ranks'.
TEST(LiveTensorsTest, SlicesCoverEachTensorOnceInOrder) {
  for (const JobConfig& config :
       {ConfigOf(1), ConfigOf(2), ConfigOf(3), ConfigOf(8), ConfigOf(3, Strategy::kNoShard),
        ConfigOf(4, Strategy::kHybridShard, 2)}) {
    SCOPED_TRACE(config.world_size);
    const ModelLayout layout = LayoutOf(config);
    const auto tensors =
        *LiveTensors(layout, OptimizerKind::kAdamW, {0, 1, 2, 3, 4}, /*moments=*/true);
    std::map<int, int64_t> next;  // By tensor.
    std::map<int, std::vector<std::pair<int, int64_t>>> by_rank;
    ASSERT_OK(ForEachLiveSlice(layout, tensors, 0, config.world_size, [&](const LiveSlice& slice) {
      EXPECT_EQ(slice.begin_elements, next[slice.tensor]);
      EXPECT_GE(slice.shard_begin_elements, 0);
      next[slice.tensor] += slice.numel;
      by_rank[slice.rank].emplace_back(slice.tensor, slice.begin_elements);
      return absl::OkStatus();
    }));
    for (size_t t = 0; t < tensors.size(); ++t)
      EXPECT_EQ(next[t], ParameterOf(layout, tensors[t]).numel);
    for (int rank = 0; rank < config.world_size; ++rank) {
      std::vector<std::pair<int, int64_t>> own;
      ASSERT_OK(ForEachLiveSlice(layout, tensors, rank, rank + 1, [&](const LiveSlice& slice) {
        own.emplace_back(slice.tensor, slice.begin_elements);
        return absl::OkStatus();
      }));
      EXPECT_EQ(own, by_rank[rank]);
    }
  }
}

}  // namespace
}  // namespace tessera
