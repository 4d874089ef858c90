#include "worker/keeper/standstill.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr uint32_t kStep = static_cast<uint32_t>(OpKind::kStep),
                   kSave = static_cast<uint32_t>(OpKind::kSave);

class StandstillTest : public testing::Test {
 protected:
  static absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  // "" if it makes progress.
  std::string Why(const Standstill::Look& look, int seconds) {
    const std::optional<Standstill::Verdict> verdict = standstill_.Judge(look, At(seconds));
    if (!verdict.has_value()) return "";
    return verdict->why + (verdict->end ? ": end" : "");
  }
  static Standstill::Look AtOperation(uint32_t kind, uint32_t consumed) {
    Standstill::Look look;
    look.kind = kind;
    look.consumed = consumed;
    return look;
  }

  Standstill standstill_{absl::Seconds(5), absl::Seconds(10)};
};

TEST_F(StandstillTest, StoppedForAsLongAsThePatienceIsTheEnd) {
  Standstill::Look stopped;
  stopped.is_stopped = true;
  EXPECT_EQ(Why(stopped, 0), "");
  EXPECT_EQ(Why(stopped, 4), "");
  EXPECT_EQ(Why({}, 5), "") << "it went on";
  EXPECT_EQ(Why(stopped, 9), "");
  EXPECT_EQ(Why(stopped, 10), "stands still for 5s: end");
}

TEST_F(StandstillTest, EpochThatIsNotLeftInTimeIsTheEnd) {
  Standstill::Look asked;
  asked.asked = At(3);
  EXPECT_EQ(Why(asked, 7), "");
  EXPECT_EQ(Why(asked, 8), "did not leave its epoch for 5s: end");
}

TEST_F(StandstillTest, OperationThatTakesLongerThanItsWaitsIsTheEnd) {
  EXPECT_EQ(Why(AtOperation(kStep, 7), 0), "");
  EXPECT_EQ(Why(AtOperation(kStep, 7), 34), "");
  EXPECT_EQ(Why(AtOperation(kStep, 8), 34), "") << "another one";
  EXPECT_EQ(Why(AtOperation(kStep, 8), 68), "");
  EXPECT_EQ(Why(AtOperation(kStep, 8), 69), "is at the operation step for more than 35s: end");
}

TEST_F(StandstillTest, OneThatHasNothingToDoMayWaitForEver) {
  EXPECT_EQ(Why({}, 0), "");
  EXPECT_EQ(Why({}, 100'000), "");
}

TEST_F(StandstillTest, OperationOnFilesIsToldOfAndLeftAlone) {
  EXPECT_EQ(Why(AtOperation(kSave, 7), 0), "");
  EXPECT_EQ(Why(AtOperation(kSave, 7), 35), "is at the operation save for more than 35s");
  EXPECT_EQ(Why(AtOperation(kSave, 7), 69), "");
  EXPECT_EQ(Why(AtOperation(kSave, 7), 70), "is at the operation save for more than 35s");
}

}  // namespace
}  // namespace tessera
