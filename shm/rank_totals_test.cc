#include "shm/rank_totals.h"

#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "shm/flight_ring.h"

namespace tessera {
namespace {

TEST(RankTotalsTest, AnOperationIsCountedOnceAndOnlyWhenItIsDone) {
  auto ring = std::make_unique<FlightRing>();
  FormatFlightRing(ring.get());
  FlightRecord record;
  record.kind = OpKind::kReduce;
  record.bytes = 4096;
  record.enqueued_ns = 1000;
  const int64_t number = Enqueue(ring.get(), record);
  MarkStarted(ring.get(), number, 1300);
  EXPECT_EQ(Sum(ring->totals).operations[3].done, 0);
  MarkDone(ring.get(), number, 2000);
  MarkDone(ring.get(), number, 9000);
  const RankSums::Operation reduced = Sum(ring->totals).operations[3];
  EXPECT_EQ(reduced.done, 1);
  EXPECT_EQ(reduced.bytes, 4096);
  EXPECT_EQ(reduced.wait_ns, 300);
  EXPECT_EQ(reduced.run_ns, 700);
}

TEST(RankTotalsTest, AnOperationThatIsDoneAfterItsSlotHasAnotherOneIsNotCounted) {
  auto ring = std::make_unique<FlightRing>();
  FormatFlightRing(ring.get());
  FlightRecord record;
  record.enqueued_ns = 1000;
  const int64_t first = Enqueue(ring.get(), record);
  for (int64_t i = 0; i < kFlightRecords; ++i) Enqueue(ring.get(), record);
  MarkDone(ring.get(), first, 2000);
  EXPECT_EQ(Sum(ring->totals).operations[1].done, 0);
}

TEST(RankTotalsTest, KindsThatAreNoneAreCountedTogether) {
  RankTotals totals = {};
  CountOperation(&totals, kCountedKinds, 1, 0, 0);
  CountOperation(&totals, 0xFFFFFFFF, 2, 0, 0);
  EXPECT_EQ(Sum(totals).operations[0].done, 2);
  EXPECT_EQ(Sum(totals).operations[0].bytes, 3);
}

TEST(RankTotalsTest, AStepIsInTheFirstBucketThatHoldsIt) {
  RankTotals totals = {};
  CountStep(&totals, 1'000'000, 2.5);
  CountStep(&totals, 1'000'001, 3.5);
  CountStep(&totals, 3'600'000'000'000, 4.5);
  const RankSums sums = Sum(totals);
  EXPECT_EQ(sums.steps[0], 1);
  EXPECT_EQ(sums.steps[1], 1);
  EXPECT_EQ(sums.steps.back(), 1);
  EXPECT_EQ(sums.step_ns, 3'600'002'000'001);
  EXPECT_EQ(sums.gradient_norm, 4.5);
}

TEST(RankTotalsTest, WhatNoExecutorWritesIsZero) {
  RankTotals totals = {};
  totals.operations[1].done.store(-7);
  totals.steps[2].store(-1);
  totals.gradient_norm.store(std::nan(""));
  const RankSums sums = Sum(totals);
  EXPECT_EQ(sums.operations[1].done, 0);
  EXPECT_EQ(sums.steps[2], 0);
  EXPECT_EQ(sums.gradient_norm, 0);
}

TEST(RankTotalsTest, NothingIsLostWhenThreadsCountAtOnce) {
  RankTotals totals = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&totals] {
      for (int j = 0; j < 10000; ++j) CountOperation(&totals, 3, 2, 1, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Sum(totals).operations[3].done, 40000);
  EXPECT_EQ(Sum(totals).operations[3].bytes, 80000);
}

}  // namespace
}  // namespace tessera
