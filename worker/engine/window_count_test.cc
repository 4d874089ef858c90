#include "worker/engine/window_count.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(WindowCountTest, LastOneThatClosesIsToldSo) {
  WindowWord word(0);
  const uint64_t tag = WindowTag(1, 0);
  OpenWindow(&word, tag);
  OpenWindow(&word, tag);
  EXPECT_FALSE(CloseWindow(&word, tag));
  OpenWindow(&word, tag);  // The next one, before all closed this one.
  EXPECT_FALSE(CloseWindow(&word, tag));
  EXPECT_TRUE(CloseWindow(&word, tag));
  EXPECT_FALSE(CloseWindow(&word, tag)) << "none is open";
}

TEST(WindowCountTest, WhatAnOlderEpochOrStepLeftDoesNotCount) {
  WindowWord word(0);
  OpenWindow(&word, WindowTag(1, 7));
  OpenWindow(&word, WindowTag(2, 7));
  EXPECT_FALSE(CloseWindow(&word, WindowTag(1, 7))) << "of a newer epoch's";
  OpenWindow(&word, WindowTag(2, 8));
  EXPECT_FALSE(CloseWindow(&word, WindowTag(2, 7)));
  EXPECT_TRUE(CloseWindow(&word, WindowTag(2, 8)));
}

TEST(WindowCountTest, RanksThatCloseAtOnceElectOne) {
  constexpr int kRanks = 4, kRounds = 500;
  WindowWord word(0);
  std::atomic<int> joined{0}, closed{0}, last{0};
  const auto await = [](std::atomic<int>* count, int wanted) {
    count->fetch_add(1);
    while (count->load() < wanted) std::this_thread::yield();
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t tag = WindowTag(1, round / 2);
        OpenWindow(&word, tag);
        await(&joined, kRanks * (round + 1));  // As the gather, which ends once all have joined.
        if (CloseWindow(&word, tag)) last.fetch_add(1);
        await(&closed, kRanks * (round + 1));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(last.load(), kRounds);
}

}  // namespace
}  // namespace tessera
