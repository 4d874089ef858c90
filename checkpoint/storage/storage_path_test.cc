#include "checkpoint/storage/storage_path.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(StoragePathTest, SchemeIsWhatStandsBeforeColonAndTwoSlashes) {
  EXPECT_EQ(SchemeOf("s3://bucket/c"), "s3");
  EXPECT_EQ(SchemeOf("S3://bucket/c"), "s3");
  EXPECT_EQ(SchemeOf("gs+v1.2-x://"), "gs+v1.2-x");
  for (const char* path : {"", "/data/c", "c", "s3:/c", "a/b://c", "3s://c", "://c", "/s3://c"})
    EXPECT_EQ(SchemeOf(path), "") << path;
}

TEST(StoragePathTest, PathsOfTheFileSystemArePlainWithAndWithoutScheme) {
  for (const char* path : {"/data/c", "data/c", "", "/a//b/", "s3:/c"})
    EXPECT_EQ(PlainPath(path).value_or("error"), path);
  EXPECT_EQ(PlainPath("file:///data/c").value_or("error"), "/data/c");
  EXPECT_EQ(PlainPath("FILE:///data/c").value_or("error"), "/data/c");
  EXPECT_EQ(AbsolutePath("file:///data/c").value_or("error"), "/data/c");
  EXPECT_EQ(AbsolutePath("data/c").value_or("error"),
            absl::StrCat(std::filesystem::current_path().string(), "/data/c"));
}

TEST(StoragePathTest, OtherSchemesAreRefusedWithTheirNameAndThoseThatThereAre) {
  for (const char* path : {"gs://bucket/c", "s3a://bucket/c", "https://host/c"}) {
    const auto refused =
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(absl::StrCat("'", path, "'")),
                       HasSubstr(absl::StrCat("no storage for ", SchemeOf(path), "://")),
                       HasSubstr("file://"), HasSubstr("s3://")));
    EXPECT_THAT(PlainPath(path), refused);
    EXPECT_THAT(AbsolutePath(path), refused);
  }
  EXPECT_THAT(PlainPath("file://host/c"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("absolute path")));
  // What is shown of a path is text, and short.
  const absl::Status shown = PlainPath("gs://\xff\r" + std::string(5000, 'x')).status();
  EXPECT_THAT(std::string(shown.message()), HasSubstr("//\\xff\\x0dx"));
  EXPECT_LT(shown.message().size(), 500);
}

TEST(StoragePathTest, PathsInObjectStoresArePlainAndAbsoluteAndLeadNowhereElse) {
  EXPECT_EQ(PlainPath("S3://bucket/a b/c").value_or("error"), "s3://bucket/a b/c");
  EXPECT_EQ(AbsolutePath("s3://bucket/c").value_or("error"), "s3://bucket/c");
  for (const char* path : {"s3://bucket/../c", "s3://b/c", "s3://"})
    EXPECT_THAT(PlainPath(path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  EXPECT_EQ(WithoutSlashes("/data/c//"), "/data/c");
  EXPECT_EQ(WithoutSlashes("/"), "/");
  EXPECT_EQ(WithoutSlashes("s3://b/c/"), "s3://b/c");
  // Which is an error that says so, and no folder "s3:".
  EXPECT_THAT(PlainPath(WithoutSlashes("s3://")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it names no bucket")));
  EXPECT_TRUE(IsAbsolutePath("s3://bucket/c"));
  EXPECT_TRUE(IsAbsolutePath("/c"));
  for (const char* path : {"", "c", "gs://bucket/c"}) EXPECT_FALSE(IsAbsolutePath(path)) << path;
  EXPECT_OK(CheckSavePath("s3://bucket/c"));
  for (const std::string& path :
       {std::string("s3://bucket"), "s3://bucket/" + std::string(801, 'k')})
    EXPECT_THAT(CheckSavePath(path),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a name")));
}

TEST(StoragePathTest, WhatIsNoTextOrTooLongIsRefusedByName) {
  EXPECT_THAT(PlainPath("/data/\xff\xfe"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("path '/data/\\xff\\xfe' is not printable UTF-8")));
  EXPECT_THAT(PlainPath("/data/" + std::string(256, 'n') + "/c"),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("has 256 bytes")));
  std::string deep;
  while (deep.size() < 4096) deep += "/folder";
  EXPECT_THAT(PlainPath(deep),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("more than 4095")));
  EXPECT_OK(PlainPath("/data/\xe6\xa8\xa1\xe5\x9e\x8b"));
  EXPECT_OK(CheckSavePath("/data/" + std::string(247, 'n')));
  EXPECT_THAT(CheckSavePath("/data/" + std::string(248, 'n')),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("at most 247")));
}

}  // namespace
}  // namespace tessera
