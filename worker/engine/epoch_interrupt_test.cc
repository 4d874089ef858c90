#include "worker/engine/epoch_interrupt.h"

#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Status kFirst = absl::AbortedError("the first reason");
const absl::Status kSecond = absl::AbortedError("the second reason");

class EpochInterruptTest : public testing::Test {
 protected:
  WaitWord submitted_;
  EpochInterrupt interrupt_{&submitted_};
};

TEST_F(EpochInterruptTest, FirstReasonStands) {
  EXPECT_OK(interrupt_.Check());
  EXPECT_FALSE(interrupt_.is_raised());
  interrupt_.Stop(kFirst);
  interrupt_.Stop(kSecond);
  EXPECT_TRUE(interrupt_.is_raised());
  EXPECT_EQ(interrupt_.Check(), kFirst);
}

TEST_F(EpochInterruptTest, ReasonOfTheWorkerIsToldBeforeTheStreamsError) {
  interrupt_.StreamFailed(kSecond);
  EXPECT_EQ(interrupt_.Check(), kSecond);
  EXPECT_EQ(interrupt_.stream_status(), kSecond);
  interrupt_.Stop(kFirst);
  EXPECT_EQ(interrupt_.Check(), kFirst);
}

TEST_F(EpochInterruptTest, RaiseAloneWakesAndGivesNoReason) {
  interrupt_.Raise();
  EXPECT_TRUE(interrupt_.is_raised());
  EXPECT_OK(interrupt_.Check());
}

TEST_F(EpochInterruptTest, ExecutorLeavesOnlyWhereNothingHasEndedIt) {
  EXPECT_TRUE(interrupt_.Leave());
  EXPECT_TRUE(interrupt_.has_left());
  EXPECT_FALSE(interrupt_.Leave());
  EpochInterrupt stopped(&submitted_), failed(&submitted_);
  stopped.Stop(kFirst);
  EXPECT_FALSE(stopped.Leave());
  EXPECT_FALSE(stopped.has_left());
  failed.StreamFailed(kFirst);
  EXPECT_FALSE(failed.Leave());
}

TEST_F(EpochInterruptTest, ErrorOfAPeerBecomesTheWorkersReasonOnceThatIsTold) {
  std::thread worker([&] { interrupt_.Stop(kFirst); });
  EXPECT_EQ(interrupt_.AwaitReason(kSecond), kFirst);
  worker.join();
}

}  // namespace
}  // namespace tessera
