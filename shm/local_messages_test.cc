#include "shm/local_messages.h"

#include <string>

#include "base/status_matchers.h"
#include "base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(LocalMessagesTest, RequestComesBackAsItWas) {
  v1::LocalRequest request;
  request.mutable_attach()->set_job_id("toy");
  request.mutable_attach()->set_attach_key(std::string("\0\xff", 2));
  ASSERT_OK_AND_ASSIGN(const v1::LocalRequest read, ParseRequest(EncodeRequest(request)));
  EXPECT_EQ(read.attach().job_id(), "toy");
  EXPECT_EQ(read.attach().attach_key(), std::string("\0\xff", 2));
}

TEST(LocalMessagesTest, RequestOfAnotherProtocolIsRefusedNamingBoth) {
  v1::LocalRequest request;
  request.mutable_detach();
  request.set_version("0.0.9");
  request.set_protocol(kProtocol + 1);
  EXPECT_THAT(ParseRequest(request.SerializeAsString()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(DescribeVersion("0.0.9", kProtocol + 1))));
}

TEST(LocalMessagesTest, WhatIsNoRequestIsRefused) {
  for (const std::string& bad : {std::string("x"), std::string("toy|1|0|1"),
                                 std::string(4096, '\xff'), EncodeRequest(v1::LocalRequest())}) {
    EXPECT_THAT(ParseRequest(bad).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request")))
        << bad;
  }
}

TEST(LocalMessagesTest, ErrorComesBackWithItsCodeItsWordsAndItsRetry) {
  for (const v1::Retry retry : {v1::RETRY_NEVER, v1::RETRY_SOON, v1::RETRY_WHEN_FREE}) {
    const absl::Status sent = WithRetry(absl::NotFoundError("no | such"), retry);
    const absl::Status read = ParseReply(EncodeReply(sent)).status();
    EXPECT_EQ(read, sent);
    EXPECT_EQ(RetryOf(read), retry);
  }
  EXPECT_EQ(RetryOf(absl::OkStatus()), v1::RETRY_NEVER);
}

TEST(LocalMessagesTest, ReplyThatSaysNothingIsAPacketAllTheSame) {
  const std::string packet = EncodeReply(absl::OkStatus());
  EXPECT_FALSE(packet.empty());
  ASSERT_OK_AND_ASSIGN(const v1::LocalReply reply, ParseReply(packet));
  EXPECT_EQ(reply.reply_case(), v1::LocalReply::REPLY_NOT_SET);
}

TEST(LocalMessagesTest, WhatIsNoReplyIsUnavailable) {
  v1::LocalReply reply;
  reply.set_code(17);
  const std::string too_high = reply.SerializeAsString();
  reply.set_code(-1);
  for (const std::string& bad : {std::string("\xff\xff"), std::string("NOT_FOUND: x"), too_high,
                                 reply.SerializeAsString()}) {
    EXPECT_THAT(ParseReply(bad).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is not a reply")));
  }
}

TEST(DescriptorSocketTest, IsBesideTheOneThatAWorkerIsCalledAt) {
  EXPECT_EQ(*DescriptorSocketOf("unix:/run/w/worker.sock"), "/run/w/descriptors.sock");
  EXPECT_EQ(*DescriptorSocketOf("unix:///run/w/worker.sock"), "/run/w/descriptors.sock");
  EXPECT_EQ(*DescriptorSocketOf("unix:w/worker.sock"), "w/descriptors.sock");
  EXPECT_EQ(*DescriptorSocketOf("unix:worker.sock"), "descriptors.sock");
  for (const char* address : {"", "localhost:7070", "/run/w/worker.sock", "unix-abstract:w"}) {
    EXPECT_THAT(DescriptorSocketOf(address).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a Unix socket")));
  }
}

}  // namespace
}  // namespace tessera
