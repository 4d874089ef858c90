#include "worker/engine/group_page.h"

#include <limits>
#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int kParameters = 5, kGroups = 2;

struct Host {
  std::unique_ptr<GroupPage> group = std::make_unique<GroupPage>();
  std::vector<std::byte> memory =
      std::vector<std::byte>(UpdateCounts::SizeBytes(kParameters), std::byte{0});
  UpdateCounts counts{memory.data(), kParameters};

  void Decide(int64_t step, const std::vector<bool>& touched, uint64_t put = 0) {
    StepNumbers numbers;
    numbers.put = put;
    numbers.is_write = put != 0;
    numbers.gradient_scale = 0.125 * step;
    numbers.gradient_norm = 2.5 * step;
    numbers.groups.resize(kGroups);
    numbers.groups[1].learning_rate = 1e-3 / step;
    numbers.groups[1].momentum = 0.75;
    RecordDecision(group.get(), counts, step, numbers, touched);
    if (put != 0) RememberPut(group.get(), put, step);
  }
  std::vector<uint64_t> Words(int64_t step) const {
    std::vector<uint64_t> words(HostProgressWords(kGroups, kParameters));
    SaveHostProgress(*group, counts, step, kGroups, absl::MakeSpan(words));
    return words;
  }
};

const std::vector<bool> kAll(kParameters, true), kFirst = {true, false, false, false, false};

TEST(HostProgressTest, EmptyHostKnowsAfterwardsWhatTheOtherDoesAndDecidesTheSame) {
  for (const uint64_t put : {uint64_t{0}, uint64_t{77}}) {
    Host whole, empty;
    whole.group->initialized.store(1);
    for (int64_t step = 1; step <= 6; ++step) whole.Decide(step, step % 3 == 0 ? kFirst : kAll);
    if (put != 0) whole.Decide(7, std::vector<bool>(kParameters), put);
    const int64_t decided = whole.group->decided_step.load();
    const std::vector<uint64_t> words = whole.Words(decided);
    ASSERT_OK(CheckHostProgress(words, decided, kGroups));
    EXPECT_TRUE(IsInitialized(words));
    RestoreHostProgress(words, empty.group.get(), empty.counts, kGroups);
    // And the step that follows is the same one.
    for (const int64_t step : {decided, decided + 1}) {
      if (step > decided) {
        whole.Decide(step, kFirst);
        empty.Decide(step, kFirst);
      }
      EXPECT_EQ(empty.Words(step), whole.Words(step)) << step;
      const TrainingProgress progress = LoadProgress(*empty.group, empty.counts, step, kGroups);
      const TrainingProgress expected = LoadProgress(*whole.group, whole.counts, step, kGroups);
      EXPECT_EQ(progress.step, expected.step);
      EXPECT_EQ(progress.update_counts, expected.update_counts);
      EXPECT_EQ(progress.groups[1].learning_rate, expected.groups[1].learning_rate);
      EXPECT_EQ(empty.counts.Load(step), whole.counts.Load(step));
      EXPECT_EQ(empty.group->decisions[step % 2].writes, whole.group->decisions[step % 2].writes);
    }
    if (put != 0) {
      ASSERT_TRUE(FindPut(*empty.group, put).has_value());
      EXPECT_EQ(FindPut(*empty.group, put)->step, decided);
    }
  }
}

TEST(HostProgressTest, WordsOfAnotherStepAreRefused) {
  Host whole;
  whole.Decide(1, kAll);
  EXPECT_THAT(CheckHostProgress(whole.Words(1), 2, kGroups),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of step 1, not 2")));
  EXPECT_FALSE(IsInitialized(whole.Words(1)));
}

TEST(HostProgressTest, NumbersThatNoStepHasAreRefused) {
  const auto expect_refused = [](void (*change)(GroupPage*), const char* fragment) {
    Host whole;
    whole.Decide(1, kAll);
    whole.group->initialized.store(1);
    EXPECT_OK(CheckHostProgress(whole.Words(1), 1, kGroups));
    change(whole.group.get());
    EXPECT_THAT(CheckHostProgress(whole.Words(1), 1, kGroups),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(fragment)));
  };
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const char* const none = "numbers that no step has";
  expect_refused([](GroupPage* p) { p->decisions[1].gradient_scale = kInfinity; }, none);
  expect_refused([](GroupPage* p) { p->decisions[1].gradient_scale = -1; }, none);
  expect_refused([](GroupPage* p) { p->decisions[1].gradient_scale = kNan; }, none);
  expect_refused([](GroupPage* p) { p->decisions[1].gradient_norm = kNan; }, none);
  expect_refused([](GroupPage* p) { p->decisions[1].trained_step = -1; }, none);
  expect_refused([](GroupPage* p) { p->decisions[1].writes = -1; }, none);
  expect_refused([](GroupPage* p) { p->decisions[1].groups[1].beta2 = 1.5; }, "beta2");
}

}  // namespace
}  // namespace tessera
