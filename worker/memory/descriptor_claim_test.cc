#include "worker/memory/descriptor_claim.h"

#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(DescriptorClaimTest, TicketSaysWhoseItIsAndTheClaimWhereTheExecutorRuns) {
  const std::string ticket = TicketOf({"toy", 2, Rank(3), Incarnation(4)});
  for (const bool hosts : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const DescriptorClaim claim, ParseClaim(ClaimText(ticket, hosts)));
    EXPECT_EQ(claim.job_id, "toy");
    EXPECT_EQ(claim.creation, 2);
    EXPECT_EQ(claim.rank, Rank(3));
    EXPECT_EQ(claim.attachment, Incarnation(4));
    EXPECT_EQ(claim.hosts_executor, hosts);
  }
}

TEST(DescriptorClaimTest, WhatIsNoTicketIsRefused) {
  for (const std::string& bad :
       {std::string(), std::string("toy|0|1"), std::string("toy|0|1|"), std::string("toy|0|1|1|"),
        std::string("toy|0|1|1|host"), std::string("toy|0|1|1|hosts|hosts"),
        std::string("toy|0|1|1|hosts\0", 16), std::string("toy|0|x|1|hosts"),
        std::string("toy|0|1|99999999999999999999|hosts"), std::string(4096, '|')}) {
    EXPECT_THAT(ParseClaim(bad), StatusIs(absl::StatusCode::kNotFound, HasSubstr("not a ticket")))
        << bad;
  }
}

TEST(DescriptorClaimTest, ReplyNamesTheFirstEpochOrIsTheWorkersError) {
  for (const GivenClaim& given : {GivenClaim{0, false}, GivenClaim{1, false}, GivenClaim{1, true},
                                  GivenClaim{700, false}, GivenClaim{700, true}}) {
    ASSERT_OK_AND_ASSIGN(const GivenClaim read, ParseClaimReply(ClaimReply(given)));
    EXPECT_EQ(read.first_epoch, given.first_epoch);
    EXPECT_EQ(read.only_host, given.only_host);
  }
  for (const char* bad : {"", "ok ", "ok 0", "ok -1", "ok x", "okay", "ok only", "ok  only",
                          "ok 0 only", "ok 1 onlyx", "NOT_FOUND: expired"}) {
    EXPECT_THAT(ParseClaimReply(bad), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(bad)));
  }
  const absl::Status own = absl::FailedPreconditionError("rank 0 needs a trainer that hosts");
  EXPECT_EQ(ParseClaimReply(own.ToString()).status(), own);
}

}  // namespace
}  // namespace tessera
