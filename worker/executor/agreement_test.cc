#include "worker/executor/agreement.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/utf8.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

absl::Status Full(const std::string& disk) {
  return absl::ResourceExhaustedError(absl::StrCat("write ", disk, ": no space left"));
}

std::string JoinedMessage(const std::vector<absl::Status>& by_rank) {
  return std::string(JoinOutcomes("save", by_rank).message());
}

TEST(JoinOutcomesTest, IsOkWhereAllAre) {
  EXPECT_OK(JoinOutcomes("save", {absl::OkStatus(), absl::OkStatus()}));
}

TEST(JoinOutcomesTest, HasTheCauseOfEachRankAndTheCodeOfTheLowest) {
  const absl::Status one = JoinOutcomes("save", {absl::OkStatus(), Full("/a"), absl::OkStatus()});
  EXPECT_EQ(one, absl::ResourceExhaustedError("save on rank 1: write /a: no space left"));
  const absl::Status two = JoinOutcomes(
      "save", {absl::OkStatus(), Full("/a"), absl::OkStatus(), absl::NotFoundError("no /b")});
  EXPECT_EQ(two,
            absl::ResourceExhaustedError("save on rank 1: write /a: no space left; rank 3: no /b"));
}

TEST(JoinOutcomesTest, NamesRanksWithTheSameCauseTogether) {
  const absl::Status ok;
  EXPECT_EQ(JoinedMessage({Full("/a"), Full("/a"), Full("/a")}),
            "save on ranks 0-2: write /a: no space left");
  EXPECT_EQ(JoinedMessage({Full("/a"), Full("/b"), Full("/a"), ok, Full("/a"), Full("/a")}),
            "save on ranks 0, 2, 4-5: write /a: no space left; rank 1: write /b: no space left");
  std::vector<absl::Status> every_other;
  for (int rank = 0; rank < 20; ++rank) every_other.push_back(rank % 2 == 0 ? Full("/a") : ok);
  EXPECT_EQ(JoinedMessage(every_other),
            "save on ranks 0, 2, 4, 6 and 6 more: write /a: no space left");
}

TEST(JoinOutcomesTest, SameWordsWithAnotherCodeAreAnotherCause) {
  EXPECT_EQ(JoinedMessage({absl::NotFoundError("no"), absl::DataLossError("no")}),
            "save on rank 0: no; rank 1: no");
}

TEST(JoinOutcomesTest, LongCauseKeepsWhereItBeginsAndWhyItEnds) {
  const std::string path = absl::StrCat("/disk1/", std::string(4000, 'x'));
  const std::string message = JoinedMessage(
      {absl::OkStatus(),
       absl::DataLossError(absl::StrCat(path, "/model.safetensors: tensor 'w' is damaged"))});
  EXPECT_THAT(message, AllOf(StartsWith("save on rank 1: /disk1/xxx"), HasSubstr("x ... x"),
                             EndsWith("/model.safetensors: tensor 'w' is damaged")));
  EXPECT_LE(message.size(), kMaxJoinedBytes);
}

TEST(JoinOutcomesTest, CausesThatHaveRoomAreWholeHoweverManyRanksFail) {
  std::vector<absl::Status> by_rank;
  for (int rank = 0; rank < 4; ++rank)
    by_rank.push_back(Full(absl::StrCat(rank, std::string(190, 'x'))));
  EXPECT_THAT(JoinedMessage(by_rank), Not(HasSubstr(" ... ")));
}

TEST(JoinOutcomesTest, NoCharacterIsCutInTwo) {
  for (int shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'a');
    for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, "\xE2\x82\xAC");
    const std::string message = JoinedMessage({absl::NotFoundError(text)});
    EXPECT_EQ(PrintableUtf8(message), message);
    EXPECT_THAT(message, HasSubstr(" ... "));
  }
}

TEST(JoinOutcomesTest, OfManyCausesTheFirstAreToldAndHowManyRanksFailedBesides) {
  for (const int world : {5, 6, 9, 1024}) {
    SCOPED_TRACE(world);
    std::vector<absl::Status> by_rank;
    for (int rank = 0; rank < world; ++rank)
      by_rank.push_back(Full(absl::StrCat("/disk", rank, "/", std::string(600, 'x'))));
    const std::string message = JoinedMessage(by_rank);
    EXPECT_LE(message.size(), kMaxJoinedBytes);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_THAT(message, HasSubstr(absl::StrCat("rank ", rank, ": write /disk", rank, "/x")));
    EXPECT_THAT(message, Not(HasSubstr("/disk4/")));
    EXPECT_THAT(message, EndsWith(world == 5 ? "no space left; 1 more rank failed"
                                             : absl::StrCat("no space left; ", world - 4,
                                                            " more ranks failed")));
  }
}

TEST(JoinOutcomesTest, ItHasRoomWhateverRanksAndCausesThereAre) {
  // Five causes, each of ranks with long numbers, far apart.
  std::vector<absl::Status> by_rank(100'000);
  for (int rank = 50'000; rank < 100'000; ++rank) {
    if (rank % 7 < 5) by_rank[rank] = Full(absl::StrCat(rank % 7, std::string(600, 'y')));
  }
  const std::string message = JoinedMessage(by_rank);
  EXPECT_LE(message.size(), kMaxJoinedBytes);
  EXPECT_THAT(message, HasSubstr(" more ranks failed"));
}

}  // namespace
}  // namespace tessera
