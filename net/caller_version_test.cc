#include "net/caller_version.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CallerVersionTest, OwnVersionAndForeignProgramsAreTaken) {
  EXPECT_OK(CheckUserAgent(OwnUserAgent()));
  EXPECT_OK(CheckUserAgent(absl::StrCat(OwnUserAgent(), " grpc-c++/1.51.1 grpc-c/29.0.0 (linux)")));
  EXPECT_OK(CheckUserAgent("grpc-python/1.51.1"));
  EXPECT_OK(CheckUserAgent(""));
}

TEST(CallerVersionTest, AnotherReleaseOfTheSameProtocolIsTaken) {
  EXPECT_OK(CheckUserAgent(absl::StrCat("tessera/9.9.9/", kProtocol, " grpc-c++/1.51.1")));
}

TEST(CallerVersionTest, AnotherProtocolIsRefusedWithBothVersions) {
  EXPECT_THAT(
      CheckUserAgent(absl::StrCat("tessera/9.9.9/", kProtocol + 1, " grpc-c++/1.51.1")),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr(absl::StrCat("Tessera 9.9.9, protocol ", kProtocol + 1)),
                     HasSubstr(absl::StrCat("Tessera ", kVersion, ", protocol ", kProtocol)))));
}

TEST(CallerVersionTest, WhatIsNoVersionIsRefusedAsProtocolZero) {
  for (const char* agent : {"tessera/", "tessera/1", "tessera/1/x", "tessera/1/1/1"}) {
    EXPECT_THAT(CheckUserAgent(agent),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("protocol 0")))
        << agent;
  }
}

}  // namespace
}  // namespace tessera
