#include "worker/keeper/ended_saves.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

v1::SaveReport Ended(int64_t ordinal, int64_t number,
                     absl::StatusCode code = absl::StatusCode::kOk) {
  v1::SaveReport report;
  report.set_epoch(3);
  report.set_ordinal(ordinal);
  report.set_number(number);
  report.set_code(static_cast<int>(code));
  return report;
}

TEST(EndedSavesTest, EachIsNewOnceOrWhereARankKnowsMore) {
  EndedSaves saves;
  EXPECT_TRUE(saves.Add(Ended(1, 7, absl::StatusCode::kAborted)));
  EXPECT_EQ(saves.request(), 0) << "it will be tried again";
  EXPECT_TRUE(saves.Add(Ended(1, 7)));
  EXPECT_FALSE(saves.Add(Ended(1, 7)));
  EXPECT_EQ(saves.request(), 7);
  v1::SaveReport with_removed = Ended(1, 7);
  with_removed.add_removed("/old");
  EXPECT_TRUE(saves.Add(with_removed));
  ASSERT_EQ(saves.reports().size(), 1);
  EXPECT_EQ(saves.reports()[0].removed(0), "/old");
}

TEST(EndedSavesTest, RequestIsKeptHoweverManyTheTrainersMakeAfterIt) {
  EndedSaves saves;
  saves.Add(Ended(1, 7, absl::StatusCode::kAborted));
  saves.Add(Ended(2, 7));
  for (int64_t ordinal = 3; ordinal < 40; ++ordinal) saves.Add(Ended(ordinal, 0));
  ASSERT_EQ(saves.reports().size(), EndedSaves::kMax);
  EXPECT_EQ(saves.reports().front().ordinal(), 2);
  EXPECT_EQ(saves.reports().back().ordinal(), 39);
}

TEST(EndedSavesTest, MoreOfOneRequestThanThereIsRoomForReplaceTheOldest) {
  EndedSaves saves;
  for (int64_t ordinal = 1; ordinal < 40; ++ordinal) saves.Add(Ended(ordinal, 7));
  ASSERT_EQ(saves.reports().size(), EndedSaves::kMax);
  EXPECT_EQ(saves.reports().back().ordinal(), 39);
}

}  // namespace
}  // namespace tessera
