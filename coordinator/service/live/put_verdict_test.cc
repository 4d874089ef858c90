#include "coordinator/service/live/put_verdict.h"

#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

constexpr WorkerPut kPending = WorkerPut::kPending, kApplied = WorkerPut::kApplied,
                    kOut = WorkerPut::kOut, kLost = WorkerPut::kLost;

TEST(PutVerdictTest, EveryPairOfWorkers) {
  struct Row {
    WorkerPut a, b;
    PutVerdict wanted, unwanted, over;
  };
  constexpr PutVerdict kWait = PutVerdict::kWait, kWithdraw = PutVerdict::kWithdraw,
                       kSet = PutVerdict::kSet, kNotSet = PutVerdict::kNotSet,
                       kUnknown = PutVerdict::kUnknown;
  const Row table[] = {
      {kPending, kPending, kWait, kWithdraw, kUnknown},
      {kPending, kApplied, kWait, kWait, kSet},
      {kPending, kOut, kWithdraw, kWithdraw, kUnknown},
      {kPending, kLost, kWithdraw, kWithdraw, kUnknown},
      {kApplied, kApplied, kSet, kSet, kSet},
      {kApplied, kOut, kSet, kSet, kSet},  // It has not learned of the decision yet.
      {kApplied, kLost, kSet, kSet, kSet},
      {kOut, kOut, kNotSet, kNotSet, kNotSet},
      {kOut, kLost, kUnknown, kUnknown, kUnknown},
      {kLost, kLost, kUnknown, kUnknown, kUnknown},
  };
  for (const Row& row : table) {
    for (const auto& [a, b] : {std::pair(row.a, row.b), std::pair(row.b, row.a)}) {
      EXPECT_EQ(Judge({a, b}, true, false), row.wanted);
      EXPECT_EQ(Judge({a, b}, false, false), row.unwanted);
      EXPECT_EQ(Judge({a, b}, false, true), row.over);
    }
  }
}

}  // namespace
}  // namespace tessera::coordinator
