#include "worker/engine/shard_watch.h"

#include <atomic>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_layout.h"

namespace tessera {
namespace {

class ShardWatchTest : public testing::Test {
 protected:
  void Make(JobConfig config) {
    config_ = std::move(config);
    ModelSpec model;
    for (const std::string name : {"a", "b", "c"})
      model.units.push_back({name, {{name + ".w", {10, 10}}}});
    layout_ = LayOut(model, config_).value();
    memory_ = JobMemory::Create(layout_, config_).value();
    state_.resize(memory_.state_region_bytes());
    for (size_t i = 0; i < state_.size(); ++i)
      state_[i] = static_cast<std::byte>(i * 131 + i / 256);
  }
  ShardWatch Open() { return {&layout_, &config_, &memory_, state_.data(), &found_}; }
  std::byte& ByteOf(StateArray array, int64_t step, int unit, int64_t offset_bytes) {
    return state_[memory_.StateOffsetBytes(array, static_cast<int>(step % 2)) +
                  memory_.units()[unit].shard_offset_bytes + offset_bytes];
  }

  JobConfig config_;
  ModelLayout layout_;
  JobMemory memory_;
  std::vector<std::byte> state_;
  std::atomic<int64_t> found_{0};
};

TEST_F(ShardWatchTest, AnyBitOfParametersAndMomentsThatChangesNamesItsUnit) {
  JobConfig config;
  config.shard_check_interval_steps = 1;
  Make(config);
  ShardWatch watch = Open();
  for (int64_t step : {1, 2}) {
    watch.Written(step);
    EXPECT_EQ(watch.FindChanged(step), -1);
    for (StateArray array :
         {StateArray::kParameter, StateArray::kFirstMoment, StateArray::kSecondMoment}) {
      for (int unit = 0; unit < 3; ++unit) {
        for (int64_t byte : {0, 399}) {
          for (int bit = 0; bit < 8; ++bit) {
            ByteOf(array, step, unit, byte) ^= std::byte{1} << bit;
            EXPECT_EQ(watch.FindChanged(step), unit);
            found_.store(0);
            ByteOf(array, step, unit, byte) ^= std::byte{1} << bit;
          }
        }
      }
    }
    EXPECT_EQ(watch.FindChanged(step), -1);
  }
}

TEST_F(ShardWatchTest, WhatOneExecutorFoundTheNextOneKnowsUntilAnotherVersionIsWritten) {
  JobConfig config;
  config.shard_check_interval_steps = 1;
  Make(config);
  {
    ShardWatch watch = Open();
    watch.Written(7);
    ByteOf(StateArray::kParameter, 7, 2, 100) ^= std::byte{4};
    EXPECT_EQ(watch.FindChanged(7), 2);
  }
  ShardWatch next = Open();
  EXPECT_EQ(next.FindChanged(7), 2);
  EXPECT_EQ(next.FindChanged(8), -1) << "a load set other values";
}

TEST_F(ShardWatchTest, OtherVersionsAndStepsThatAreNotWatchedMayChange) {
  JobConfig config;
  config.shard_check_interval_steps = 3;
  config.optimizer = OptimizerKind::kSgd;
  Make(config);
  ShardWatch watch = Open();
  watch.Written(3);
  ByteOf(StateArray::kParameter, 4, 1, 7) ^= std::byte{1};     // The next step writes there.
  ByteOf(StateArray::kSecondMoment, 3, 1, 7) ^= std::byte{1};  // SGD has none.
  EXPECT_EQ(watch.FindChanged(3), -1);
  watch.Written(4);
  ByteOf(StateArray::kParameter, 4, 1, 7) ^= std::byte{1};
  EXPECT_EQ(watch.FindChanged(4), -1);
}

TEST_F(ShardWatchTest, WithoutAnIntervalNothingIsWatched) {
  Make(JobConfig());
  ShardWatch watch = Open();
  watch.Written(0);
  ByteOf(StateArray::kParameter, 0, 0, 0) ^= std::byte{1};
  EXPECT_EQ(watch.FindChanged(0), -1);
}

}  // namespace
}  // namespace tessera
