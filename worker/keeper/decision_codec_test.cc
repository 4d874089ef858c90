#include "worker/keeper/decision_codec.h"

#include <limits>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/field_limits.h"
#include "proto/executor.pb.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A worker's page and counts, after the steps that were recorded.
struct Worker {
  static constexpr int kParameters = 11;
  std::unique_ptr<GroupPage> group = std::make_unique<GroupPage>();
  std::vector<std::byte> memory =
      std::vector<std::byte>(UpdateCounts::SizeBytes(kParameters), std::byte{0});
  UpdateCounts counts{memory.data(), kParameters};

  void Decide(int64_t step, const std::vector<bool>& touched, bool is_write = false,
              bool is_trainers_step = false, uint64_t put = 0) {
    StepNumbers numbers;
    numbers.put = put;
    numbers.is_write = is_write;
    numbers.is_trainers_step = is_trainers_step;
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

std::vector<bool> None() { return std::vector<bool>(Worker::kParameters); }

TEST(DecisionCodecTest, WorkerThatMissedADecisionLearnsItWhole) {
  Worker knows, missed;
  for (Worker* worker : {&knows, &missed}) worker->Decide(1, Every(2));
  knows.Decide(2, Every(3));
  const std::string bytes = EncodeDecision(*knows.group, knows.counts, 2);
  ASSERT_OK(RecordDecision(bytes, 2, missed.group.get(), missed.counts, 2));
  EXPECT_EQ(missed.group->decided_step.load(), 2);
  const StepNumbers a = LoadDecision(*knows.group, knows.counts, 2, 2),
                    b = LoadDecision(*missed.group, missed.counts, 2, 2);
  EXPECT_EQ(b.gradient_scale, 0.25);
  EXPECT_EQ(b.gradient_norm, 5.0);
  EXPECT_EQ(b.groups[1].learning_rate, a.groups[1].learning_rate);
  EXPECT_EQ(b.groups[1].momentum, 0.75);
  EXPECT_EQ(missed.counts.Load(2), knows.counts.Load(2));
}

TEST(DecisionCodecTest, WorkerThatMissedAPutLearnsWhichOne) {
  constexpr uint64_t kPut = 0x8000000000000001;
  Worker knows, missed;
  for (Worker* worker : {&knows, &missed}) worker->Decide(1, Every(2));
  knows.Decide(2, None(), /*is_write=*/true, /*is_trainers_step=*/false, kPut);
  const std::string bytes = EncodeDecision(*knows.group, knows.counts, 2);
  EXPECT_FALSE(FindPut(*missed.group, kPut).has_value());
  ASSERT_OK(RecordDecision(bytes, 2, missed.group.get(), missed.counts, 2));
  ASSERT_TRUE(FindPut(*missed.group, kPut).has_value());
  EXPECT_EQ(FindPut(*missed.group, kPut)->step, 2);
  EXPECT_EQ(FindPut(*missed.group, kPut)->trained_step, 1);
  EXPECT_EQ(LoadDecision(*missed.group, missed.counts, 2, 2).writes, 0) << "no trainer's";
  // Only a write has one.
  v1::StepDecision decision;
  ASSERT_TRUE(decision.ParseFromString(bytes));
  decision.set_is_write(false);
  Worker other;
  other.Decide(1, Every(2));
  EXPECT_THAT(RecordDecision(decision.SerializeAsString(), 2, other.group.get(), other.counts, 2),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a put that is not a write")));
  EXPECT_EQ(other.group->decided_step.load(), 1);
}

TEST(DecisionCodecTest, WorkerThatMissedAWriteLearnsThatItIsOne) {
  Worker knows, missed;
  for (Worker* worker : {&knows, &missed}) worker->Decide(1, Every(2));
  knows.Decide(2, None(), /*is_write=*/true);
  ASSERT_OK(RecordDecision(EncodeDecision(*knows.group, knows.counts, 2), 2, missed.group.get(),
                           missed.counts, 2));
  EXPECT_TRUE(LoadDecision(*missed.group, missed.counts, 2, 2).is_write);
  EXPECT_EQ(LoadDecision(*missed.group, missed.counts, 2, 2).writes, 1);
  EXPECT_FALSE(LoadDecision(*missed.group, missed.counts, 1, 2).is_write);
}

TEST(DecisionCodecTest, WorkerThatMissedALoadLearnsWhereTrainingStands) {
  Worker knows, missed;
  for (Worker* worker : {&knows, &missed}) worker->Decide(1, Every(2));
  StepNumbers numbers;
  numbers.is_write = true;
  numbers.loaded.emplace();
  numbers.loaded->step = 41;
  for (int i = 0; i < Worker::kParameters; ++i) numbers.loaded->update_counts.push_back(7 * i);
  RecordDecision(knows.group.get(), knows.counts, 2, numbers, None());
  ASSERT_OK(RecordDecision(EncodeDecision(*knows.group, knows.counts, 2), 2, missed.group.get(),
                           missed.counts, 2));
  const StepNumbers told = LoadDecision(*missed.group, missed.counts, 2, 2);
  ASSERT_TRUE(told.loaded.has_value());
  EXPECT_EQ(told.loaded->step, 41);
  EXPECT_EQ(told.loaded->update_counts, numbers.loaded->update_counts);
  EXPECT_EQ(told.groups[1].momentum, 0.75) << "as in the step before";
  // The steps after it count on.
  for (Worker* worker : {&knows, &missed}) {
    worker->Decide(3, Every(2));
    const TrainingProgress progress = LoadProgress(*worker->group, worker->counts, 3, 2);
    EXPECT_EQ(progress.step, 42);
    EXPECT_EQ(progress.update_counts[2], 15);
    EXPECT_EQ(progress.update_counts[3], 21);
  }
}

TEST(DecisionCodecTest, WorkerThatMissedATrainersOwnStepLearnsThatItIsOneAndNoWrite) {
  Worker knows, missed;
  for (Worker* worker : {&knows, &missed}) worker->Decide(1, None(), /*is_write=*/true);
  knows.Decide(2, None(), /*is_write=*/true, /*is_trainers_step=*/true);
  ASSERT_OK(RecordDecision(EncodeDecision(*knows.group, knows.counts, 2), 2, missed.group.get(),
                           missed.counts, 2));
  const StepNumbers numbers = LoadDecision(*missed.group, missed.counts, 2, 2);
  EXPECT_TRUE(numbers.is_write);
  EXPECT_TRUE(numbers.is_trainers_step);
  EXPECT_EQ(numbers.writes, 1) << "it counts as a step";
  EXPECT_FALSE(LoadDecision(*missed.group, missed.counts, 1, 2).is_trainers_step);
  missed.Decide(3, Every(2));
  EXPECT_FALSE(LoadDecision(*missed.group, missed.counts, 3, 2).is_trainers_step)
      << "nor does the mark stay";
}

TEST(DecisionCodecTest, LargestJobsDecisionIsNotLongerThanCoordinatorsTake) {
  const auto group = std::make_unique<GroupPage>();
  std::vector<std::byte> memory(UpdateCounts::SizeBytes(kMaxParameters));
  const UpdateCounts counts(memory.data(), kMaxParameters);
  StepNumbers numbers;
  numbers.is_write = true;
  numbers.groups.resize(kMaxParamGroups);
  numbers.loaded.emplace();
  numbers.loaded->step = std::numeric_limits<int64_t>::max();
  numbers.loaded->update_counts.assign(kMaxParameters, std::numeric_limits<uint32_t>::max());
  RecordDecision(group.get(), counts, 1, numbers, std::vector<bool>(kMaxParameters));
  const size_t loaded_bytes = EncodeDecision(*group, counts, kMaxParamGroups).size();
  EXPECT_LE(loaded_bytes, kMaxDecisionBytes);
  EXPECT_GE(loaded_bytes, 5 * kMaxParameters);
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

TEST(DecisionCodecTest, NumbersThatNoStepHasAreRefusedAndChangeNothing) {
  Worker knows, missed;
  knows.Decide(1, Every(2));
  v1::StepDecision good;
  ASSERT_TRUE(good.ParseFromString(EncodeDecision(*knows.group, knows.counts, 2)));
  const auto expect_refused = [&](void (*change)(v1::StepDecision*), const char* fragment) {
    v1::StepDecision bad = good;
    change(&bad);
    EXPECT_THAT(
        RecordDecision(bad.SerializeAsString(), 1, missed.group.get(), missed.counts, 2),
        StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("step 1"), HasSubstr(fragment))));
    EXPECT_EQ(missed.group->decided_step.load(), 0);
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  expect_refused([](v1::StepDecision* d) { d->set_gradient_scale(kNan); }, "gradient scale");
  expect_refused([](v1::StepDecision* d) { d->set_gradient_scale(-1); }, "gradient scale");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  expect_refused([](v1::StepDecision* d) { d->set_gradient_scale(kInfinity); }, "gradient scale");
  expect_refused([](v1::StepDecision* d) { d->set_gradient_norm(kNan); }, "gradient norm");
  expect_refused([](v1::StepDecision* d) { d->set_gradient_norm(-1); }, "gradient norm");
  expect_refused([](v1::StepDecision* d) { d->mutable_groups(1)->set_beta2(1.5); }, "beta2");
  expect_refused([](v1::StepDecision* d) { d->set_is_trainers_step(true); }, "without");
  expect_refused([](v1::StepDecision* d) { d->set_is_write(true); }, "gradient");
  expect_refused([](v1::StepDecision* d) { d->mutable_touched()->back() = '\x08'; }, "parameter");
  ASSERT_OK(RecordDecision(good.SerializeAsString(), 1, missed.group.get(), missed.counts, 2));
}

TEST(DecisionCodecTest, CountsOfUpdatesArriveUpToTheMostThatThePageHolds) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  Worker knows;
  StepNumbers numbers;
  numbers.is_write = true;
  numbers.groups.resize(2);
  numbers.loaded.emplace();
  numbers.loaded->update_counts.assign(Worker::kParameters, kMost);
  RecordDecision(knows.group.get(), knows.counts, 1, numbers, None());
  v1::StepDecision good;
  ASSERT_TRUE(good.ParseFromString(EncodeDecision(*knows.group, knows.counts, 2)));
  Worker missed;
  ASSERT_OK(RecordDecision(good.SerializeAsString(), 1, missed.group.get(), missed.counts, 2));
  EXPECT_EQ(missed.counts.CountOf(1, 3), kMost);
}

TEST(DecisionCodecTest, RandomBytesAndFlippedBitsAreRefusedOrAreADecision) {
  std::mt19937 random(20260612);
  Worker knows;
  knows.Decide(1, Every(2));
  const std::string good = EncodeDecision(*knows.group, knows.counts, 2);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    if (round % 2 == 0) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    } else {
      bytes.resize(random() % 200);
      for (char& byte : bytes) byte = static_cast<char>(random());
    }
    Worker missed;
    const absl::Status status = RecordDecision(bytes, 1, missed.group.get(), missed.counts, 2);
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_EQ(missed.group->decided_step.load(), 0);
      continue;
    }
    for (const HyperParameters& group : LoadDecision(*missed.group, missed.counts, 1, 2).groups)
      EXPECT_OK(ValidateHyperParameters(group, 0));
  }
}

}  // namespace
}  // namespace tessera
