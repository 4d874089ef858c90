#include "worker/engine/load_target.h"

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"
#include "worker/device/host/host_rank_kernels.h"

namespace tessera {
namespace {

// One rank, two units of one parameter each; it is at step 6.
class LoadTargetTest : public testing::Test {
 protected:
  void SetUp() override {
    const ModelSpec model = {
        {{"root", {{"a", {30, 7}, DType::kFp32}}}, {"block", {{"b", {40}, DType::kFp32}}}}};
    ASSERT_OK_AND_ASSIGN(layout_, LayOut(model, config_));
    ASSERT_OK_AND_ASSIGN(plan_, JobMemory::Create(layout_, config_));
    segments_ = SegmentsOf(layout_, config_, plan_, Rank(0));
    ASSERT_EQ(segments_.size(), 2u);
    state_.resize(plan_.state_region_bytes());
    for (const UnitLayout& unit : layout_.units) {
      std::vector<float>& values = published_.emplace_back(unit.shards.shard_numel(), -1.0f);
      UnitParameters& parameters = parameters_.emplace_back();
      parameters.own_slice = reinterpret_cast<std::byte*>(values.data());
    }
    optimizer_ = std::make_unique<ShardedOptimizer>(config_, plan_, segments_, state_.data(),
                                                    parameters_, &kernels_);
    in_place_ = std::make_unique<InPlaceState>(optimizer_.get());
    PublishApplied(group_.get(), 0, 6);
  }
  LoadTarget Target(bool first, AddressableState* state = nullptr) {
    return LoadTarget({optimizer_.get(), state == nullptr ? in_place_.get() : state, &kernels_,
                       /*publishes=*/state == nullptr, group_.get(), 0, first ? 0 : 7, first});
  }

  JobConfig config_;
  ModelLayout layout_;
  JobMemory plan_;
  std::vector<ShardSegment> segments_;
  std::vector<std::byte> state_;
  std::vector<std::vector<float>> published_;
  std::vector<UnitParameters> parameters_;
  HostRankKernels kernels_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::unique_ptr<InPlaceState> in_place_;
  std::unique_ptr<GroupPage> group_ = std::make_unique<GroupPage>();
};

TEST_F(LoadTargetTest, ParametersGoIntoTheVersionToComeAndToTrainersAndThePageSaysSo) {
  LoadTarget target = Target(/*first=*/false);
  const std::vector<float> values = {1, 2, 3};
  ASSERT_TRUE(IsPublished(*group_, 0));
  target.Set(StateArray::kFirstMoment, segments_[0], 4, values);
  EXPECT_TRUE(IsPublished(*group_, 0)) << "no trainer has moments";
  EXPECT_FALSE(target.has_published());
  target.Set(StateArray::kParameter, segments_[0], 4, values);
  EXPECT_TRUE(target.has_published());
  EXPECT_FALSE(IsPublished(*group_, 0));
  EXPECT_EQ(group_->ranks[0].applied_step.load(), 6) << "its shard stands";
  for (const StateArray array : {StateArray::kParameter, StateArray::kFirstMoment}) {
    const absl::Span<const float> staged = optimizer_->Staged(array, segments_[0], 7);
    EXPECT_EQ(std::vector<float>(staged.begin() + 4, staged.begin() + 7), values);
    EXPECT_EQ(staged[3], 0);
    EXPECT_EQ(staged[7], 0);
  }
  EXPECT_EQ(std::vector<float>(published_[0].begin() + 3, published_[0].begin() + 8),
            (std::vector<float>{-1, 1, 2, 3, -1}));
  PublishApplied(group_.get(), 0, 6);
  EXPECT_TRUE(IsPublished(*group_, 0));
}

TEST_F(LoadTargetTest, TrainersThatComputeInAHalfHaveItRounded) {
  config_.compute_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(plan_, JobMemory::Create(layout_, config_));
  state_.assign(plan_.state_region_bytes(), std::byte{0});
  optimizer_ = std::make_unique<ShardedOptimizer>(config_, plan_,
                                                  SegmentsOf(layout_, config_, plan_, Rank(0)),
                                                  state_.data(), parameters_, &kernels_);
  LoadTarget target = Target(/*first=*/false);
  target.Set(StateArray::kParameter, segments_[1], 3, std::vector<float>{1.001f, -2});
  const auto* halves = reinterpret_cast<const uint16_t*>(published_[1].data());
  EXPECT_EQ(halves[3], 0x3f80);  // 1
  EXPECT_EQ(halves[4], 0xc000);
  EXPECT_EQ(halves[5], 0xbf80) << "of -1.0f, the rest of what was there";
  const absl::Span<const float> staged =
      optimizer_->Staged(StateArray::kParameter, segments_[1], 7);
  EXPECT_EQ(staged[3], 1.001f);
}

TEST_F(LoadTargetTest, FirstVersionNeedsNoMarkForNobodyHasValuesYet) {
  LoadTarget target = Target(/*first=*/true);
  target.Set(StateArray::kParameter, segments_[1], 0, std::vector<float>{5});
  EXPECT_TRUE(target.has_published());
  EXPECT_TRUE(IsPublished(*group_, 0));
  EXPECT_EQ(published_[1][0], 5);
}

TEST_F(LoadTargetTest, ImageTakesWhatLiesElsewhereAndNothingIsPublished) {
  StateImage image(&plan_, config_.optimizer, state_.data());
  ASSERT_OK(image.Reserve(&kernels_));
  image.Clear();
  ImageState state(&image, &kernels_);
  LoadTarget target = Target(/*first=*/false, &state);
  target.Set(StateArray::kParameter, segments_[1], 2, std::vector<float>{5});
  const absl::Span<const float> values = image.At(StateArray::kParameter, segments_[1]);
  EXPECT_EQ(values[2], 5);
  EXPECT_FALSE(target.has_published());
  EXPECT_TRUE(IsPublished(*group_, 0));
  EXPECT_EQ(published_[1][2], -1);
}

TEST_F(LoadTargetTest, WhatIsKeptIsAsInTheVersionBeforeAndWhatIsClearedIsZero) {
  LoadTarget target = Target(/*first=*/false);
  const absl::Span<float> before = optimizer_->Staged(StateArray::kSecondMoment, segments_[1], 6);
  const absl::Span<float> next = optimizer_->Staged(StateArray::kSecondMoment, segments_[1], 7);
  before[5] = 8;
  next[5] = 9;
  target.Keep(StateArray::kSecondMoment, segments_[1]);
  EXPECT_EQ(next[5], 8);
  target.Clear(StateArray::kSecondMoment, segments_[1]);
  EXPECT_EQ(next[5], 0);
  EXPECT_EQ(before[5], 8);
}

}  // namespace
}  // namespace tessera
