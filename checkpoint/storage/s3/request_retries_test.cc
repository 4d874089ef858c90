#include "checkpoint/storage/s3/request_retries.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

using testing::AllOf;
using testing::HasSubstr;

HttpAnswer Answer(int status, const std::string& code = "") {
  HttpAnswer answer;
  answer.status = status;
  if (!code.empty()) {
    answer.body =
        absl::StrCat("<Error><Code>", code,
                     "</Code><Message>so it is</Message><Region>eu-west-3</Region></Error>");
  }
  return answer;
}

HttpAnswer Cut(bool is_transient, int status = 0) {
  HttpAnswer answer = Answer(status);
  answer.failure = "connection reset";
  answer.is_transient = is_transient;
  return answer;
}

bool Retries(const HttpAnswer& answer) { return MayRetry(answer, ErrorOf(answer)); }

TEST(RequestRetriesTest, WhatPassesIsTriedAgainAndWhatDoesNotIsNot) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(Retries(Answer(status)));
  for (const char* code : {"RequestTimeout", "BadDigest"}) EXPECT_TRUE(Retries(Answer(400, code)));
  EXPECT_TRUE(Retries(Answer(409, "ConditionalRequestConflict")));
  EXPECT_TRUE(Retries(Answer(200, "InternalError"))) << "a success that turned out none";
  EXPECT_TRUE(Retries(Cut(true)));
  EXPECT_TRUE(Retries(Cut(true, 200))) << "a body that was cut";
  EXPECT_FALSE(Retries(Cut(false))) << "not a certificate";
  for (const int status : {200, 204, 206, 301, 400, 401, 403, 404, 412, 416, 501})
    EXPECT_FALSE(Retries(Answer(status))) << status;
  EXPECT_FALSE(Retries(Answer(403, "SignatureDoesNotMatch")));
}

TEST(RequestRetriesTest, DelaysGrowAreSpreadAndHeedTheStore) {
  const HttpAnswer answer = Answer(503);
  EXPECT_LT(DelayBefore(0, 0.5, answer), absl::Milliseconds(200));
  EXPECT_LT(DelayBefore(0, 0.5, answer), DelayBefore(3, 0.5, answer));
  EXPECT_LT(DelayBefore(3, 0.1, answer), DelayBefore(3, 0.9, answer));
  EXPECT_LE(DelayBefore(1000, 0.99, answer), absl::Seconds(30));
  HttpAnswer later = answer;
  later.headers["retry-after"] = "7";
  EXPECT_GE(DelayBefore(0, 0.5, later), absl::Seconds(7));
  later.headers["retry-after"] = "999999999";
  EXPECT_LE(DelayBefore(0, 0.5, later), absl::Seconds(30));
  later.headers["retry-after"] = "Fri, 27 Nov 2026 00:00:00 GMT";
  EXPECT_LT(DelayBefore(0, 0.5, later), absl::Seconds(1));
}

TEST(RequestRetriesTest, ErrorsNameStatusCodeAndWhatToDo) {
  const auto status_of = [](const HttpAnswer& answer) {
    return StatusOf("read s3://b/k", answer, ErrorOf(answer));
  };
  EXPECT_THAT(status_of(Answer(403, "InvalidAccessKeyId")),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("read s3://b/k: HTTP 403 InvalidAccessKeyId: so it is"),
                             HasSubstr("check AWS_ACCESS_KEY_ID"))));
  EXPECT_THAT(status_of(Answer(404, "NoSuchBucket")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("create the bucket")));
  EXPECT_THAT(status_of(Answer(400, "AuthorizationHeaderMalformed")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("region, eu-west-3")));
  EXPECT_THAT(status_of(Answer(403, "ExpiredToken")),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("renew")));
  EXPECT_THAT(status_of(Answer(503, "SlowDown")),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("HTTP 503 SlowDown")));
  EXPECT_THAT(status_of(Cut(true)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("connection reset; check AWS_END")));
  EXPECT_THAT(status_of(Cut(false)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("AWS_CA_BUNDLE")));
}

TEST(RequestRetriesTest, WhatAStoreSaysIsShownAsShortText) {
  HttpAnswer answer = Answer(400);
  answer.body = absl::StrCat("<Error><Code>\x1b[31m</Code><Message>", std::string(100'000, 'x'),
                             "</Message></Error>");
  const absl::Status status = StatusOf("read", answer, ErrorOf(answer));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\\x1b[31m"));
  EXPECT_LT(status.message().size(), 1000);
  answer.body = "<html>not one of a store</html>";
  EXPECT_THAT(StatusOf("read", answer, ErrorOf(answer)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("read: HTTP 400")));
}

}  // namespace
}  // namespace tessera::s3
