#include "net/address.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ServerAddressTest, KnowsWhoCanReachIt) {
  const struct {
    const char* text;
    Reach reach;
    const char* host;
    int port;
  } kCases[] = {
      {"127.0.0.1:0", Reach::kLoopback, "127.0.0.1", 0},
      {"127.8.9.10:7070", Reach::kLoopback, "127.8.9.10", 7070},
      {"localhost:1", Reach::kLoopback, "localhost", 1},
      {"LocalHost:1", Reach::kLoopback, "LocalHost", 1},
      {"localhost.:1", Reach::kLoopback, "localhost.", 1},
      {"[::1]:65535", Reach::kLoopback, "::1", 65535},
      {"[0:0:0:0:0:0:0:1]:1", Reach::kLoopback, "0:0:0:0:0:0:0:1", 1},
      {"0.0.0.0:0", Reach::kNetwork, "0.0.0.0", 0},
      {"[::]:1", Reach::kNetwork, "::", 1},
      {"10.0.0.1:1", Reach::kNetwork, "10.0.0.1", 1},
      {"node7:1", Reach::kNetwork, "node7", 1},
      // Names that only look like the loopback's.
      {"127.evil.example:1", Reach::kNetwork, "127.evil.example", 1},
      {"127.0.0.1.5:1", Reach::kNetwork, "127.0.0.1.5", 1},
      {"localhost.example:1", Reach::kNetwork, "localhost.example", 1},
  };
  for (const auto& expected : kCases) {
    SCOPED_TRACE(expected.text);
    ASSERT_OK_AND_ASSIGN(const ServerAddress address, ParseServerAddress(expected.text));
    EXPECT_EQ(address.reach, expected.reach);
    EXPECT_EQ(address.host, expected.host);
    EXPECT_EQ(address.port, expected.port);
  }
}

TEST(ServerAddressTest, UnixSocketsAreKnownByTheirPrefix) {
  ASSERT_OK_AND_ASSIGN(const ServerAddress address, ParseServerAddress("unix:/run/a:7/w.sock"));
  EXPECT_EQ(address.reach, Reach::kUnix);
  EXPECT_EQ(address.path, "/run/a:7/w.sock");
}

TEST(ServerAddressTest, MalformedAddressesAreRefused) {
  for (const char* text : {"", "host", ":1", "host:", "host:x", "host:-1", "host:65536", "::1:7",
                           "[]:1", "unix:", "unix-abstract:name"}) {
    EXPECT_THAT(ParseServerAddress(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  }
}

TEST(ServerAddressTest, PortThatNoPortIsIsNamed) {
  for (const char* text : {"host:65536", "[::1]:99999999999999999999999"}) {
    EXPECT_THAT(ParseServerAddress(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is above 65535")));
  }
}

}  // namespace
}  // namespace tessera
