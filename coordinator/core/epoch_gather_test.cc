#include "coordinator/core/epoch_gather.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

const WorkerId kA("a");
const WorkerId kB("b");
const std::vector<RankPlacement> kPlacements = {
    {kA, 0, Incarnation(1)}, {kA, 1, Incarnation(1)}, {kB, 0, Incarnation(1)}};

EpochPrepared Answer(int64_t decided_step) {
  EpochPrepared answer;
  answer.decided_step = Step(decided_step);
  return answer;
}

TEST(EpochGatherTest, CompleteWhenEveryWorkerAnswered) {
  EpochGather gather(kPlacements);
  gather.Add(kA, Answer(3));
  gather.Add(kA, Answer(3));
  EXPECT_FALSE(gather.complete());
  EXPECT_EQ(gather.missing(), std::set<WorkerId>({kB}));
  gather.Add(kB, Answer(2));
  EXPECT_TRUE(gather.complete());
}

TEST(EpochGatherTest, ResumesFromTheLatestStepThatAnybodyKnows) {
  EpochGather gather(kPlacements);
  gather.Add(kA, Answer(3));
  gather.Add(kB, Answer(5));
  EXPECT_EQ(gather.ResumeStep(Step(4)), Step(5));
  EXPECT_EQ(gather.ResumeStep(Step(6)), Step(6));
}

TEST(EpochGatherTest, HandsOnTheLatestDecisionAndAllAddresses) {
  EpochGather gather(kPlacements);
  EpochPrepared a = Answer(5), b = Answer(4);
  a.decision = "of 5";
  a.rank_addresses = {{0, "old"}, {1, "a1"}};
  b.decision = "of 4";
  b.rank_addresses = {{2, "b0"}};
  gather.Add(kA, a);
  a.rank_addresses[0] = "a0";
  gather.Add(kA, a);
  gather.Add(kB, b);
  EXPECT_EQ(gather.decision(), "of 5");
  EXPECT_EQ(gather.rank_addresses(),
            (std::map<int32_t, std::string>{{0, "a0"}, {1, "a1"}, {2, "b0"}}));
}

TEST(EpochGatherTest, StrangersHaveNoSay) {
  EpochGather gather(kPlacements);
  gather.Add(WorkerId("stranger"), Answer(100));
  gather.Add(kA, Answer(1));
  EXPECT_FALSE(gather.complete());
  EXPECT_EQ(gather.ResumeStep(Step(0)), Step(1));
}

}  // namespace
}  // namespace tessera::coordinator
