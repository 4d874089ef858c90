#include "coordinator/service/hand_over/hand_over_plan.h"

#include <limits>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

ModelLayout Layout(int world_size, Strategy strategy = Strategy::kFullShard) {
  ModelSpec model;
  model.units = {{"a", {{"w", {5, 3}, DType::kFp32}, {"b", {7}, DType::kFp32}}},
                 {"c", {{"frozen", {9}, DType::kFp64, false}}}};
  model.buffers = {{"count", StoredDType::kI64, {}}, {"mask", StoredDType::kBool, {5, 3}}};
  JobConfig config;
  config.world_size = world_size;
  config.strategy = strategy;
  return *LayOut(model, config);
}

v1::ReadHandOverRequest Request(int parameter, v1::LiveStateArray array, int64_t begin,
                                int64_t numel) {
  v1::ReadHandOverRequest request;
  v1::LiveRange* range = request.add_ranges();
  range->set_parameter(parameter);
  range->set_array(array);
  range->set_begin_elements(begin);
  range->set_numel(numel);
  return request;
}

TEST(HandOverPlanTest, PartsCoverEachRangeInOrderOnTheRanksThatHaveIt) {
  for (const int world : {1, 2, 3, 8}) {
    const ModelLayout layout = Layout(world);
    for (int64_t begin = 0; begin < 15; ++begin) {
      for (int64_t numel = 0; begin + numel <= 15; ++numel) {
        ASSERT_OK_AND_ASSIGN(
            const auto plan,
            PlanHandOverRead(layout, OptimizerKind::kAdamW,
                             Request(0, v1::LIVE_STATE_ARRAY_SECOND_MOMENT, begin, numel)));
        int64_t at = begin;
        for (const HandOverPart& part : plan) {
          EXPECT_EQ(part.range.begin_elements(), at);
          EXPECT_EQ(part.range.array(), v1::LIVE_STATE_ARRAY_SECOND_MOMENT);
          EXPECT_EQ(part.element_bytes, 4);
          EXPECT_GT(part.range.numel(), 0);
          for (const int64_t end = at + part.range.numel(); at < end; ++at)
            EXPECT_EQ(layout.units[0].shards.OwnerOf(at), Rank(part.range.rank()));
        }
        EXPECT_EQ(at, begin + numel);
      }
    }
  }
}

TEST(HandOverPlanTest, BuffersAreReadFromRank0InTheirOwnDType) {
  ASSERT_OK_AND_ASSIGN(const auto plan,
                       PlanHandOverRead(Layout(4), OptimizerKind::kSgd,
                                        Request(1, v1::LIVE_STATE_ARRAY_BUFFER, 3, 12)));
  ASSERT_EQ(plan.size(), 1);
  EXPECT_EQ(plan[0].range.rank(), 0);
  EXPECT_EQ(plan[0].range.begin_elements(), 3);
  EXPECT_EQ(plan[0].range.numel(), 12);
  EXPECT_EQ(plan[0].element_bytes, 1);
}

TEST(HandOverPlanTest, OfReplicasTheFirstIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto plan,
                       PlanHandOverRead(Layout(4, Strategy::kNoShard), OptimizerKind::kSgd,
                                        Request(2, v1::LIVE_STATE_ARRAY_PARAMETER, 0, 9)));
  ASSERT_EQ(plan.size(), 1);
  EXPECT_EQ(plan[0].range.rank(), 0);
  EXPECT_EQ(plan[0].element_bytes, 8);
}

TEST(HandOverPlanTest, RangesThatAreNotOfTheJobAreRefusedByName) {
  const ModelLayout layout = Layout(2);
  const auto refused = [&](const v1::ReadHandOverRequest& request, const std::string& text,
                           OptimizerKind optimizer = OptimizerKind::kAdamW) {
    EXPECT_THAT(PlanHandOverRead(layout, optimizer, request),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused(Request(3, v1::LIVE_STATE_ARRAY_PARAMETER, 0, 1), "no parameter 3");
  refused(Request(-1, v1::LIVE_STATE_ARRAY_PARAMETER, 0, 1), "no parameter -1");
  refused(Request(0, v1::LIVE_STATE_ARRAY_UNSPECIFIED, 0, 1), "'w' has no state array 0");
  refused(Request(0, static_cast<v1::LiveStateArray>(5), 0, 1), "'w' has no state array 5");
  refused(Request(2, v1::LIVE_STATE_ARRAY_BUFFER, 0, 1), "no buffer 2");
  refused(Request(-1, v1::LIVE_STATE_ARRAY_BUFFER, 0, 1), "no buffer -1");
  refused(Request(2, v1::LIVE_STATE_ARRAY_FIRST_MOMENT, 0, 1), "'frozen' has no state array");
  refused(Request(0, v1::LIVE_STATE_ARRAY_SECOND_MOMENT, 0, 1), "'w' has no state array",
          OptimizerKind::kSgd);
  for (const auto& [begin, numel] : {std::pair<int64_t, int64_t>{0, 16},
                                     {15, 1},
                                     {16, 0},
                                     {-1, 1},
                                     {0, -1},
                                     {1, kMax},
                                     {kMax, 1},
                                     {kMax, kMax}}) {
    refused(Request(0, v1::LIVE_STATE_ARRAY_PARAMETER, begin, numel), "'w' has 15 elements");
    refused(Request(1, v1::LIVE_STATE_ARRAY_BUFFER, begin, numel), "'mask' has 15 elements");
  }
}

}  // namespace
}  // namespace tessera::coordinator
