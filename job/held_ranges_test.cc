#include "job/held_ranges.h"

#include <map>
#include <set>

#include "base/ids.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

ModelSpec SmallModel() {
  ModelSpec model;
  model.units.push_back({"root", {{"a", {5, 37}}, {"b", {7}}}});
  model.units.push_back({"u", {{"c", {2}}, {"d", {0}}, {"e", {111}, DType::kFp32, false}}});
  return model;
}

ModelLayout LayoutOf(int world_size, Strategy strategy, int group_size) {
  JobConfig config;
  config.world_size = world_size;
  config.strategy = strategy;
  config.shard_group_size = group_size;
  return *LayOut(SmallModel(), config);
}

std::vector<LiveTensor> AllParameters(const ModelLayout& layout) {
  const ParameterNumbers numbers(layout);
  std::vector<LiveTensor> tensors;
  for (int number = numbers.size(); number-- > 0;)  // Any order will do.
    tensors.push_back(*numbers.TensorOf(number, LiveArray::kParameter, OptimizerKind::kAdamW));
  return tensors;
}

TEST(HeldRangesTest, AreWhatAnyOfTheRanksHoldsOnceAndRising) {
  for (const auto& [strategy, group_size] :
       {std::pair(Strategy::kFullShard, 0), std::pair(Strategy::kNoShard, 0),
        std::pair(Strategy::kHybridShard, 2), std::pair(Strategy::kHybridShard, 3)}) {
    const ModelLayout layout = LayoutOf(6, strategy, group_size);
    const std::vector<LiveTensor> tensors = AllParameters(layout);
    for (int first = 0; first < 6; ++first) {
      for (int end = first + 1; end <= 6; ++end) {
        std::vector<std::set<int64_t>> expected(tensors.size()), found(tensors.size());
        for (size_t t = 0; t < tensors.size(); ++t) {
          const PlacedParameter& parameter = ParameterOf(layout, tensors[t]);
          for (int rank = first; rank < end; ++rank) {
            const ElementRange slice = layout.units[tensors[t].unit].shards.RangeOf(Rank(rank));
            for (int64_t i = 0; i < parameter.numel; ++i) {
              const int64_t at = parameter.offset_elements + i;
              if (at >= slice.begin && at < slice.end) expected[t].insert(i);
            }
          }
        }
        int last_tensor = 0;
        int64_t last_end = 0;
        ASSERT_OK(ForEachHeldRange(layout, tensors, first, end, [&](const HeldRange& range) {
          if (range.tensor != last_tensor) last_end = 0;
          EXPECT_GE(range.tensor, last_tensor);
          EXPECT_GE(range.begin_elements, last_end);
          EXPECT_GT(range.numel, 0);
          last_tensor = range.tensor;
          last_end = range.begin_elements + range.numel;
          for (int64_t i = range.begin_elements; i < last_end; ++i)
            EXPECT_TRUE(found[range.tensor].insert(i).second);
          return absl::OkStatus();
        }));
        EXPECT_EQ(found, expected) << "ranks " << first << " to " << end;
      }
    }
  }
}

TEST(HeldRangesTest, TensorThatThereIsNotIsRefusedByName) {
  const ParameterNumbers numbers(LayoutOf(2, Strategy::kFullShard, 0));
  const auto refusal = [&](int64_t number, LiveArray array, OptimizerKind optimizer) {
    return std::string(numbers.TensorOf(number, array, optimizer).status().message());
  };
  EXPECT_THAT(refusal(5, LiveArray::kParameter, OptimizerKind::kAdamW),
              HasSubstr("parameter 5 does not exist"));
  EXPECT_THAT(refusal(-1, LiveArray::kParameter, OptimizerKind::kAdamW),
              HasSubstr("parameter -1 does not exist"));
  EXPECT_THAT(refusal(4, LiveArray::kFirstMoment, OptimizerKind::kAdamW), HasSubstr("'e'"));
  EXPECT_THAT(refusal(0, LiveArray::kSecondMoment, OptimizerKind::kSgd), HasSubstr("'a'"));
  EXPECT_OK(numbers.TensorOf(0, LiveArray::kFirstMoment, OptimizerKind::kSgd));
}

}  // namespace
}  // namespace tessera
