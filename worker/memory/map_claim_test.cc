#include "worker/memory/map_claim.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/memory/descriptor_claim.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(MapClaimTest, SessionComesBackAsItWas) {
  for (const char* session : {"map-0123", ""}) {
    const std::string text = MapClaimText(session);
    EXPECT_TRUE(IsMapClaim(text));
    EXPECT_EQ(SessionOf(text), session);
  }
}

TEST(MapClaimTest, NoTrainersTicketIsOneWhateverItsJobIsCalled) {
  for (const char* job : {"map", "map|", "gpt", ""}) {
    const std::string ticket = TicketOf({job, 1, Rank(0), Incarnation(3), false});
    EXPECT_FALSE(IsMapClaim(ticket)) << ticket;
    EXPECT_FALSE(IsMapClaim(ClaimText(ticket, /*hosts_executor=*/true))) << ticket;
  }
}

TEST(MapClaimTest, AnythingElseIsNone) {
  for (const char* text : {"", "map", "maps|s", "map|s|", "map|s|all", "Map|s", " map|s"})
    EXPECT_FALSE(IsMapClaim(text)) << text;
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
