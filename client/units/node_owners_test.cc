#include "client/units/node_owners.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr uint64_t kThread = 7, kOther = 8;

std::shared_ptr<const UnitForward> ForwardOf(int unit) {
  auto forward = std::make_shared<UnitForward>();
  forward->unit = unit;
  return forward;
}

int OwnerOf(const NodeOwners& owners, uint64_t number, uint64_t thread = kThread) {
  const auto forward = owners.Find(thread, number);
  return forward == nullptr ? -1 : forward->unit;
}

TEST(NodeOwnersTest, NodeIsOfTheInnermostForwardThatWasUnderWay) {
  NodeOwners owners;
  owners.Begin(kThread, 10, ForwardOf(0));
  owners.Begin(kThread, 15, ForwardOf(1));
  EXPECT_EQ(OwnerOf(owners, 16), 1) << "before it has ended";
  owners.End(kThread, 23);
  owners.Begin(kThread, 23, ForwardOf(2));  // It makes none.
  owners.End(kThread, 23);
  owners.End(kThread, 31);
  EXPECT_EQ(OwnerOf(owners, 9), -1);
  EXPECT_EQ(OwnerOf(owners, 10), 0);
  EXPECT_EQ(OwnerOf(owners, 14), 0);
  EXPECT_EQ(OwnerOf(owners, 15), 1);
  EXPECT_EQ(OwnerOf(owners, 22), 1);
  EXPECT_EQ(OwnerOf(owners, 23), 0);
  EXPECT_EQ(OwnerOf(owners, 30), 0);
  EXPECT_EQ(OwnerOf(owners, 31), -1);
}

TEST(NodeOwnersTest, EachThreadCountsItsOwnNodes) {
  NodeOwners owners;
  owners.Begin(kThread, 10, ForwardOf(0));
  owners.Begin(kOther, 3, ForwardOf(1));
  owners.End(kOther, 20);
  owners.End(kThread, 12);
  EXPECT_EQ(OwnerOf(owners, 11), 0);
  EXPECT_EQ(OwnerOf(owners, 11, kOther), 1);
  EXPECT_EQ(OwnerOf(owners, 12), -1);
}

TEST(NodeOwnersTest, WhatAnExceptionLeftUnderWayEnds) {
  NodeOwners owners;
  owners.Begin(kThread, 10, ForwardOf(0));
  const NodeOwners::Depths depths = owners.depths();
  owners.Begin(kThread, 12, ForwardOf(1));
  owners.Begin(kOther, 5, ForwardOf(2));
  owners.EndDownTo(depths, kThread, 14);
  EXPECT_EQ(OwnerOf(owners, 13), 1);
  EXPECT_EQ(OwnerOf(owners, 14), 0) << "the forward around it goes on";
  EXPECT_EQ(OwnerOf(owners, 6, kOther), -1);
}

TEST(NodeOwnersTest, ForgetsNodesButNotForwardsThatGoOn) {
  NodeOwners owners;
  owners.Begin(kThread, 10, ForwardOf(0));
  owners.Begin(kThread, 12, ForwardOf(1));
  owners.End(kThread, 14);
  owners.Forget();
  EXPECT_EQ(OwnerOf(owners, 13), -1);
  EXPECT_EQ(OwnerOf(owners, 15), 0);
}

TEST(NodeOwnersTest, ForwardsWithoutEndTakeNoMemoryWithoutEnd) {
  NodeOwners owners;
  const auto forward = ForwardOf(1);
  const uint64_t count = NodeOwners::kMaxMarks;
  for (uint64_t i = 0; i < count; ++i) {
    owners.Begin(kThread, 10 * i, forward);
    owners.End(kThread, 10 * i + 5);
  }
  EXPECT_LE(forward.use_count(), static_cast<int64_t>(NodeOwners::kMaxMarks / 2) + 2);
  EXPECT_EQ(OwnerOf(owners, 0), -1) << "long ago";
  EXPECT_EQ(OwnerOf(owners, 10 * (count / 2 + 1) + 4), 1);
  EXPECT_EQ(OwnerOf(owners, 10 * (count / 2 + 1) + 5), -1);
}

}  // namespace
}  // namespace tessera
