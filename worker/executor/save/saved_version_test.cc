#include "worker/executor/save/saved_version.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kVersion = 5;
constexpr int64_t kMiB = int64_t{1} << 20;

class SavedVersionTest : public testing::Test {
 protected:
  void TearDown() override { DisarmAllFaultPoints(); }

  // Of so many elements each: element k of all is k, as long as the version stands.
  absl::Status Begin(const std::vector<int64_t>& numels) {
    memory_.clear();
    std::vector<ConstValues> slices;
    float next = 0;
    for (const int64_t numel : numels) {
      std::vector<float>& values = memory_.emplace_back(numel);
      for (float& value : values) value = next++;
    }
    for (const std::vector<float>& values : memory_) slices.emplace_back(values);
    return version_.Begin(kVersion, std::move(slices), &stopped_);
  }
  static void Await(const std::function<bool()>& condition) {
    while (!condition()) std::this_thread::yield();
  }
  // As training does, that writes version 7 over it.
  void Overwrite() {
    for (std::vector<float>& values : memory_) std::fill(values.begin(), values.end(), -1.0f);
  }
  // All that is left of a slice, in pieces; and what they must be.
  static std::vector<float> TakeAll(ByteSource* slice, int64_t size_bytes, int64_t piece_bytes) {
    std::vector<float> taken(size_bytes / sizeof(float));
    std::string room(piece_bytes, '\0');
    for (int64_t at = 0; at < size_bytes; at += piece_bytes) {
      const int64_t bytes = std::min(piece_bytes, size_bytes - at);
      memcpy(reinterpret_cast<char*>(taken.data()) + at, slice->Take(bytes, room.data()), bytes);
    }
    return taken;
  }
  static std::vector<float> From(float first, int64_t numel) {
    std::vector<float> values(numel);
    for (float& value : values) value = first++;
    return values;
  }

  std::vector<std::vector<float>> memory_;
  std::atomic<bool> stopped_{false};
  SavedVersion version_;
};

TEST_F(SavedVersionTest, WhatIsWrittenBeforeTrainingComesIsNotCopied) {
  ASSERT_OK(Begin({kMiB, 3}));
  std::thread copier([&] { version_.CopyBehind(); });
  EXPECT_TRUE(version_.MayOverwrite(kVersion + 1));
  EXPECT_FALSE(version_.MayOverwrite(kVersion + 2));
  EXPECT_EQ(TakeAll(version_.Slice(0).get(), 4 * kMiB, 64 << 10), From(0, kMiB));
  EXPECT_FALSE(version_.MayOverwrite(kVersion + 2)) << "a slice is left";
  EXPECT_EQ(TakeAll(version_.Slice(1).get(), 12, 64 << 10), From(kMiB, 3));
  EXPECT_TRUE(version_.MayOverwrite(kVersion + 2));
  copier.join();
  version_.StartCopying();
  version_.AwaitCopied(kVersion + 2);
  EXPECT_EQ(version_.copied_bytes(), 0);
}

TEST_F(SavedVersionTest, WhoComesToOverwriteItCopiesWhatIsLeftAndThatIsWrittenFromTheCopy) {
  ASSERT_OK(Begin({kMiB, 2 * kMiB}));
  const std::unique_ptr<ByteSource> first = version_.Slice(0);
  EXPECT_EQ(TakeAll(first.get(), 4 * kMiB, kMiB), From(0, kMiB));
  const std::unique_ptr<ByteSource> second = version_.Slice(1);
  constexpr int64_t kTakenBytes = 2 * kMiB + 4;
  EXPECT_EQ(TakeAll(second.get(), kTakenBytes, kTakenBytes), From(kMiB, kTakenBytes / 4));
  version_.AwaitCopied(kVersion + 1);
  EXPECT_EQ(version_.copied_bytes(), 0) << "nobody copies for a step that overwrites nothing";
  version_.AwaitCopied(kVersion + 2);
  EXPECT_TRUE(version_.MayOverwrite(kVersion + 2));
  EXPECT_EQ(version_.copied_bytes(), 6 * kMiB) << "what was taken is not copied, but for a piece";
  Overwrite();
  EXPECT_EQ(TakeAll(second.get(), 8 * kMiB - kTakenBytes, 64 << 10),
            From(kMiB + kTakenBytes / 4, 2 * kMiB - kTakenBytes / 4));
}

TEST_F(SavedVersionTest, IsCopiedAfterTheWriterOnceCopyingIsStarted) {
  ASSERT_OK(Begin({2 * kMiB}));
  std::thread copier([&] { version_.CopyBehind(); });
  const std::unique_ptr<ByteSource> slice = version_.Slice(0);
  EXPECT_EQ(TakeAll(slice.get(), kMiB, kMiB), From(0, kMiB / 4));
  EXPECT_EQ(version_.copied_bytes(), 0);
  version_.StartCopying();
  copier.join();
  EXPECT_EQ(version_.copied_bytes(), 7 * kMiB);
  EXPECT_TRUE(version_.MayOverwrite(kVersion + 2)) << "who comes to overwrite it does not wait";
  Overwrite();
  EXPECT_EQ(TakeAll(slice.get(), 7 * kMiB, kMiB), From(kMiB / 4, 7 * kMiB / 4));
}

TEST_F(SavedVersionTest, WhoComesToOverwriteItWaitsForWhatOthersAreCopying) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.copy", hold);  // Whichever of the two comes first.
  ASSERT_OK(Begin({2 * kMiB}));
  std::thread copier([&] { version_.CopyBehind(); });
  version_.StartCopying();
  std::thread training([&] {
    version_.AwaitCopied(kVersion + 2);
    Overwrite();
  });
  Await([&] { return version_.copied_bytes() == 7 * kMiB; });  // By the one that is not held.
  EXPECT_FALSE(version_.MayOverwrite(kVersion + 2));
  DisarmAllFaultPoints();
  training.join();
  copier.join();
  EXPECT_EQ(TakeAll(version_.Slice(0).get(), 8 * kMiB, kMiB), From(0, 2 * kMiB));
}

TEST_F(SavedVersionTest, WhoComesToOverwriteItWaitsForWhatIsBeingTakenAndNoMoreIs) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.taking", hold);
  ASSERT_OK(Begin({2 * kMiB}));
  std::vector<float> taken;
  std::thread taker([&] { taken = TakeAll(version_.Slice(0).get(), 8 * kMiB, 64 << 10); });
  Await([&] { return version_.hands().taking; });
  std::thread training([&] {
    version_.AwaitCopied(kVersion + 2);
    Overwrite();
  });
  Await([&] { return version_.copied_bytes() == 8 * kMiB; });
  EXPECT_FALSE(version_.MayOverwrite(kVersion + 2));
  DisarmAllFaultPoints();
  training.join();
  taker.join();
  EXPECT_EQ(taken, From(0, 2 * kMiB));
}

TEST_F(SavedVersionTest, MemoryOfTheCopyStaysUntilNobodyWritesToItThoughTheEpochEnds) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.copy", hold);
  ASSERT_OK(Begin({2 * kMiB}));
  std::thread training([&] { version_.AwaitCopied(kVersion + 2); });
  Await([&] { return version_.hands().copying == 1; });
  stopped_.store(true);
  std::thread copier([&] { version_.CopyBehind(); });
  int copying_at_the_end = -1;
  std::thread writer([&] {
    version_.EndTaking();
    copying_at_the_end = version_.hands().copying;
    version_.DropMemory();
  });
  DisarmAllFaultPoints();
  writer.join();
  copier.join();
  training.join();
  EXPECT_EQ(copying_at_the_end, 0);
}

TEST_F(SavedVersionTest, EndOfTheEpochEndsTheCopyAndWhoWaitsForIt) {
  ASSERT_OK(Begin({2 * kMiB}));
  std::thread copier([&] { version_.CopyBehind(); });
  stopped_.store(true);
  version_.StartCopying();
  version_.AwaitCopied(kVersion + 2);
  EXPECT_EQ(version_.copied_bytes(), 0);
  copier.join();
}

TEST_F(SavedVersionTest, SaveThatIsOverBeforeAllIsTakenHoldsNothingUp) {
  ASSERT_OK(Begin({2 * kMiB}));
  std::thread copier([&] { version_.CopyBehind(); });
  EXPECT_EQ(TakeAll(version_.Slice(0).get(), kMiB, kMiB), From(0, kMiB / 4));
  version_.EndTaking();
  copier.join();
  EXPECT_TRUE(version_.MayOverwrite(kVersion + 2));
  version_.AwaitCopied(kVersion + 2);
  EXPECT_EQ(version_.copied_bytes(), 0);
  ASSERT_OK(Begin({}));
  EXPECT_TRUE(version_.MayOverwrite(kVersion + 2)) << "of nothing";
}

// A taking, a copying and a training thread, each at its own pace.
TEST_F(SavedVersionTest, EveryByteTakenIsOfTheVersionHoweverTheThreadsInterleave) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> numels;
    for (uint64_t i = 0; i < 1 + random() % 5; ++i) numels.push_back(1 + random() % (kMiB / 2));
    ASSERT_OK(Begin(numels));
    ArmDelays(random());
    std::thread copier([&] { version_.CopyBehind(); });
    std::thread training([&, starts_copying = random() % 2 == 0] {
      if (starts_copying) version_.StartCopying();
      (void)FaultPoint("step");
      version_.AwaitCopied(kVersion + 2);
      EXPECT_TRUE(version_.MayOverwrite(kVersion + 2));
      Overwrite();
    });
    float next = 0;
    for (size_t i = 0; i < numels.size(); ++i) {
      const int64_t piece_bytes = int64_t{4} << (random() % 19);
      const std::vector<float> taken =
          TakeAll(version_.Slice(i).get(), numels[i] * 4, std::max<int64_t>(piece_bytes, 4096));
      ASSERT_EQ(taken, From(next, numels[i]));
      next += static_cast<float>(numels[i]);
    }
    version_.EndTaking();
    training.join();
    copier.join();
    DisarmAllFaultPoints();
  }
}

}  // namespace
}  // namespace tessera
