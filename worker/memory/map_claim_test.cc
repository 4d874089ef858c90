#include "worker/memory/map_claim.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/memory/descriptor_claim.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(MapClaimTest, ClaimsComeBackAsTheyWere) {
  for (const bool only_numbers : {false, true}) {
    const std::string text = MapClaimText({"map-0123", only_numbers});
    EXPECT_TRUE(IsMapClaim(text));
    const absl::StatusOr<MapClaim> claim = ParseMapClaim(text);
    ASSERT_OK(claim.status());
    EXPECT_EQ(claim->session, "map-0123");
    EXPECT_EQ(claim->only_numbers, only_numbers);
  }
}

TEST(MapClaimTest, NoTrainersTicketIsOneWhateverItsJobIsCalled) {
  for (const char* job : {"map", "map|", "gpt", ""}) {
    const std::string ticket = TicketOf({job, 1, Rank(0), Incarnation(3), false});
    EXPECT_FALSE(IsMapClaim(ticket)) << ticket;
    EXPECT_FALSE(IsMapClaim(ClaimText(ticket, /*hosts_executor=*/true))) << ticket;
  }
}

TEST(MapClaimTest, AnythingElseIsRefused) {
  for (const char* text : {"", "map", "map|", "map|s", "map||all", "map|s|", "map|s|some",
                           "map|s|all|", "Map|s|all", "map|s|all\n"}) {
    EXPECT_THAT(ParseMapClaim(text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")))
        << text;
  }
}

TEST(MapClaimTest, RepliesComeBackAsTheyWereAndOthersAreUnavailable) {
  EXPECT_OK(ParseMapReply(MapReplyText(absl::OkStatus())));
  for (const absl::Status& status :
       {absl::NotFoundError("no | such"), absl::FailedPreconditionError(""),
        absl::UnauthenticatedError("who")}) {
    EXPECT_EQ(ParseMapReply(MapReplyText(status)), status);
  }
  for (const char* text : {"", "0|fine", "17|too much", "-1|x", "okay", "9999999999|x", "|x"}) {
    EXPECT_THAT(ParseMapReply(text), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(text)));
  }
}

}  // namespace
}  // namespace tessera
