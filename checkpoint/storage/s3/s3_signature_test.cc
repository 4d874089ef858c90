#include "checkpoint/storage/s3/s3_signature.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

using testing::EndsWith;

// The examples of AWS's documentation of signatures in headers, with its keys.
class S3SignatureTest : public testing::Test {
 protected:
  S3SignatureTest() {
    settings_.access_key = "AKIAIOSFODNN7EXAMPLE";
    settings_.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    settings_.region = "us-east-1";
  }
  std::string Sign(const SignedRequest& request) {
    return SignHeaders(request, settings_,
                       absl::FromCivil(absl::CivilDay(2013, 5, 24), absl::UTCTimeZone()))
        .back();
  }
  S3Settings settings_;
};

TEST_F(S3SignatureTest, IsThatOfTheExamples) {
  EXPECT_THAT(
      Sign({"GET", "https://examplebucket.s3.amazonaws.com/test.txt", {"range: bytes=0-9"}, ""}),
      EndsWith("Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
  EXPECT_THAT(
      Sign({"PUT",
            "https://examplebucket.s3.amazonaws.com/test%24file.text",
            {"date: Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class: REDUCED_REDUNDANCY"},
            "Welcome to Amazon S3."}),
      EndsWith("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
  EXPECT_THAT(
      Sign({"GET", "https://examplebucket.s3.amazonaws.com/?lifecycle=", {}, ""}),
      EndsWith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  EXPECT_THAT(
      Sign({"GET", "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", {}, ""}),
      EndsWith("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST_F(S3SignatureTest, TokenIsSignedAndTheSecretIsNotSent) {
  settings_.session_token = "the-token";
  const std::vector<std::string> headers =
      SignHeaders({"GET", "http://127.0.0.1:9000/b/k", {}, ""}, settings_, absl::UnixEpoch());
  EXPECT_THAT(headers, testing::Contains("x-amz-security-token: the-token"));
  EXPECT_THAT(headers, testing::Contains("host: 127.0.0.1:9000"));
  EXPECT_THAT(headers.back(), testing::HasSubstr("x-amz-security-token, Signature="));
  for (const std::string& header : headers)
    EXPECT_THAT(header, testing::Not(testing::HasSubstr(settings_.secret_key)));
}

}  // namespace
}  // namespace tessera::s3
