#include "checkpoint/storage/s3/s3_path.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

using testing::HasSubstr;
using testing::Pair;

TEST(S3PathTest, BucketAndKeyAreToldApart) {
  ASSERT_OK_AND_ASSIGN(const S3Path path, ParsePath("S3://my-bucket.x/runs/gpt/step 1+%"));
  EXPECT_EQ(path.bucket, "my-bucket.x");
  EXPECT_EQ(path.key, "runs/gpt/step 1+%");
  EXPECT_EQ(PathOf(path), "s3://my-bucket.x/runs/gpt/step 1+%");
  for (const char* bucket : {"s3://bucket", "s3://bucket/"}) {
    ASSERT_OK_AND_ASSIGN(const S3Path whole, ParsePath(bucket));
    EXPECT_EQ(whole.key, "");
  }
  ASSERT_OK_AND_ASSIGN(const S3Path folder, ParsePath("s3://bucket/a/b/"));
  EXPECT_EQ(folder.key, "a/b");
}

TEST(S3PathTest, NamesThatLeadElsewhereAreRefused) {
  for (const char* path : {"/data/c", "s3:/bucket/c", "s3://", "s3:///c", "s3://ab/c",
                           "s3://Bucket/c", "s3://user@host/c", "s3://host:80/c", "s3://b..b/c",
                           "s3://-bb/c", "s3://bucket/../c", "s3://bucket/a/..", "s3://bucket/./c",
                           "s3://bucket//c", "s3://bucket/a//b", "s3://bucket/a//"}) {
    EXPECT_THAT(ParsePath(path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  }
  EXPECT_OK(ParsePath(absl::StrCat("s3://bucket/", std::string(kMaxKeyBytes, 'k'))));
  EXPECT_THAT(ParsePath(absl::StrCat("s3://bucket/", std::string(kMaxKeyBytes + 1, 'k'))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 1024")));
}

TEST(S3PathTest, KeysAreEscapedAsSignaturesHaveThem) {
  EXPECT_EQ(EscapeKey("a b/c+d%2F/..x~-_.\xc3\xbc"), "a%20b/c%2Bd%252F/..x~-_.%C3%BC");
  EXPECT_EQ(EscapeValue("a/b=c&d"), "a%2Fb%3Dc%26d");
  EXPECT_EQ(QueryOf({{"prefix", "a b/"}, {"list-type", "2"}, {"delimiter", "/"}}),
            "delimiter=%2F&list-type=2&prefix=a%20b%2F");
  EXPECT_EQ(QueryOf({{"uploads", ""}}), "uploads=");
}

TEST(S3PathTest, KeysAreSplitAtTheLastSlash) {
  EXPECT_THAT(SplitKey("a/b/c"), Pair("a/b", "c"));
  EXPECT_THAT(SplitKey("c"), Pair("", "c"));
}

}  // namespace
}  // namespace tessera::s3
