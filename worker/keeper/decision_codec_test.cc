#include "worker/keeper/decision_codec.h"

#include <memory>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// A worker's page and counts, after the steps that were recorded.
struct Worker {
  static constexpr int kParameters = 11;
  std::unique_ptr<GroupPage> group = std::make_unique<GroupPage>();
  std::vector<std::byte> memory =
      std::vector<std::byte>(UpdateCounts::SizeBytes(kParameters), std::byte{0});
  UpdateCounts counts{memory.data(), kParameters};

  void Decide(int64_t step, const std::vector<bool>& touched, bool is_write = false) {
    StepNumbers numbers;
    numbers.is_write = is_write;
    numbers.gradient_scale = 0.125 * step;
    numbers.gradient_norm = 2.5 * step;
    numbers.groups.resize(2);
    numbers.groups[1].learning_rate = 1e-3 / step;
    numbers.groups[1].momentum = 0.75;
    RecordDecision(group.get(), counts, step, numbers, touched);
  }
};

std::vector<bool> Every(int nth) {
  std::vector<bool> touched(Worker::kParameters);
  for (int i = 0; i < Worker::kParameters; ++i) touched[i] = i % nth == 0;
  return touched;
}

TEST(DecisionCodecTest, WorkerThatMissedADecisionLearnsItWhole) {
  Worker knows, missed;
  for (Worker* worker : {&knows, &missed}) worker->Decide(1, Every(2));
  knows.Decide(2, Every(3));
  const std::string bytes = EncodeDecision(*knows.group, knows.counts, 2);
  ASSERT_OK(RecordDecision(bytes, 2, missed.group.get(), missed.counts, 2));
  EXPECT_EQ(missed.group->decided_step.load(), 2);
  const StepNumbers a = LoadDecision(*knows.group, 2, 2), b = LoadDecision(*missed.group, 2, 2);
  EXPECT_EQ(b.gradient_scale, 0.25);
  EXPECT_EQ(b.gradient_norm, 5.0);
  EXPECT_EQ(b.groups[1].learning_rate, a.groups[1].learning_rate);
  EXPECT_EQ(b.groups[1].momentum, 0.75);
  EXPECT_EQ(missed.counts.Load(2), knows.counts.Load(2));
}

TEST(DecisionCodecTest, WorkerThatMissedAWriteLearnsThatItIsOne) {
  Worker knows, missed;
  for (Worker* worker : {&knows, &missed}) worker->Decide(1, Every(2));
  knows.Decide(2, Every(100), /*is_write=*/true);
  ASSERT_OK(RecordDecision(EncodeDecision(*knows.group, knows.counts, 2), 2, missed.group.get(),
                           missed.counts, 2));
  EXPECT_TRUE(LoadDecision(*missed.group, 2, 2).is_write);
  EXPECT_EQ(LoadDecision(*missed.group, 2, 2).writes, 1);
  EXPECT_FALSE(LoadDecision(*missed.group, 1, 2).is_write);
}

TEST(DecisionCodecTest, WithoutADecisionThereIsNothingToTell) {
  Worker worker;
  EXPECT_EQ(EncodeDecision(*worker.group, worker.counts, 2), "");
}

TEST(DecisionCodecTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  Worker knows, missed;
  knows.Decide(1, Every(2));
  const std::string bytes = EncodeDecision(*knows.group, knows.counts, 2);
  const auto expect_refused = [&](const std::string& bad, int64_t step, int num_groups) {
    EXPECT_THAT(RecordDecision(bad, step, missed.group.get(), missed.counts, num_groups),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step")));
    EXPECT_EQ(missed.group->decided_step.load(), 0);
  };
  expect_refused("", 1, 2);
  expect_refused("\xff\xff\xff", 1, 2);
  expect_refused(bytes, 2, 2);
  expect_refused(bytes, 1, 3);
  knows.Decide(2, Every(2));
  expect_refused(EncodeDecision(*knows.group, knows.counts, 2), 2, 2);  // It is at 0, not at 1.
}

}  // namespace
}  // namespace tessera
