#include "coordinator/core/epoch_gather.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

const WorkerId kA("a");
const WorkerId kB("b");
const std::vector<RankPlacement> kPlacements = {
    {kA, 0, Incarnation(1)}, {kA, 1, Incarnation(1)}, {kB, 0, Incarnation(1)}};

TEST(EpochGatherTest, CompleteWhenEveryWorkerAnswered) {
  EpochGather gather(kPlacements);
  gather.Add(kA, Step(3));
  gather.Add(kA, Step(3));
  EXPECT_FALSE(gather.complete());
  EXPECT_EQ(gather.missing(), std::set<WorkerId>({kB}));
  gather.Add(kB, Step(2));
  EXPECT_TRUE(gather.complete());
}

TEST(EpochGatherTest, ResumesFromTheLatestStepThatAnybodyKnows) {
  EpochGather gather(kPlacements);
  gather.Add(kA, Step(3));
  gather.Add(kB, Step(5));
  EXPECT_EQ(gather.ResumeStep(Step(4)), Step(5));
  EXPECT_EQ(gather.ResumeStep(Step(6)), Step(6));
}

TEST(EpochGatherTest, StrangersHaveNoSay) {
  EpochGather gather(kPlacements);
  gather.Add(WorkerId("stranger"), Step(100));
  gather.Add(kA, Step(1));
  EXPECT_FALSE(gather.complete());
  EXPECT_EQ(gather.ResumeStep(Step(0)), Step(1));
}

}  // namespace
}  // namespace tessera::coordinator
