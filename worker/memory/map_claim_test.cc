#include "worker/memory/map_claim.h"

#include <string>

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

TEST(MapQueryTest, AnyBytesOfAQueryComeBackAndAreNoOtherClaim) {
  for (const std::string& query :
       {std::string(), std::string("\0|\xff", 3), MapQueryText("toy"), MapClaimText("map-1")}) {
    const std::string text = MapQueryText(query);
    EXPECT_TRUE(IsMapQuery(text));
    EXPECT_FALSE(IsMapClaim(text));
    EXPECT_FALSE(ParseClaim(text).ok());
    EXPECT_EQ(QueryOf(text), query);
  }
  EXPECT_FALSE(IsMapQuery(MapClaimText("map-1")));
  EXPECT_FALSE(IsMapQuery(TicketOf({"map ", 1, Rank(0), Incarnation(3), false})));
  EXPECT_FALSE(IsMapQuery(""));
}

TEST(MapQueryTest, AnswersComeBackShortOrAsAFileAndErrorsAsTheyWere) {
  for (const std::string& answer : {std::string("a"), std::string("\0|ok", 4)})
    EXPECT_EQ(*ParseMapAnswer(MapAnswerText(answer)), answer);
  EXPECT_EQ(*ParseMapAnswer(MapReplyText(absl::OkStatus())), "") << "it is in a file";
  EXPECT_EQ(ParseMapAnswer(MapReplyText(absl::NotFoundError("ok|"))).status(),
            absl::NotFoundError("ok|"));
  EXPECT_THAT(ParseMapAnswer("NOT_FOUND: not a ticket").status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not a ticket")));
  EXPECT_TRUE(IsShortAnswer(std::string(48 << 10, 'x')));
  EXPECT_FALSE(IsShortAnswer(std::string((48 << 10) + 1, 'x')));
}

TEST(DescriptorSocketTest, IsBesideTheOneThatAWorkerIsCalledAt) {
  EXPECT_EQ(*DescriptorSocketOf("unix:/run/w/worker.sock"), "/run/w/descriptors.sock");
  EXPECT_EQ(*DescriptorSocketOf("unix:///run/w/worker.sock"), "/run/w/descriptors.sock");
  EXPECT_EQ(*DescriptorSocketOf("unix:w/worker.sock"), "w/descriptors.sock");
  EXPECT_EQ(*DescriptorSocketOf("unix:worker.sock"), "descriptors.sock");
  for (const char* address : {"", "localhost:7070", "/run/w/worker.sock", "unix-abstract:w"}) {
    EXPECT_THAT(DescriptorSocketOf(address).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no Unix socket")));
  }
}

}  // namespace
}  // namespace tessera
