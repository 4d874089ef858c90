#include "coordinator/service/listen_address.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddressTest, KnowsLoopbackFromTheRest) {
  for (const char* text : {"127.0.0.1:0", "127.8.9.10:7070", "localhost:1", "[::1]:65535"}) {
    ASSERT_OK_AND_ASSIGN(const ListenAddress address, ParseListenAddress(text));
    EXPECT_TRUE(address.is_loopback) << text;
  }
  for (const char* text : {"0.0.0.0:0", "[::]:1", "10.0.0.1:1", "127.evil.example:1", "node7:1"}) {
    ASSERT_OK_AND_ASSIGN(const ListenAddress address, ParseListenAddress(text));
    EXPECT_FALSE(address.is_loopback) << text;
  }
}

TEST(ListenAddressTest, MalformedAddressesAreRefused) {
  for (const char* text : {"", "host", ":1", "host:", "host:x", "host:-1", "host:65536", "::1:7"}) {
    EXPECT_THAT(ParseListenAddress(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  }
}

TEST(ListenAddressTest, DiagnosesAPortInUse) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in bound = {};
  bound.sin_family = AF_INET;
  bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(bound);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&bound), size), 0);
  ASSERT_EQ(listen(fd.get(), 1), 0);
  ASSERT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  const std::string text = absl::StrCat("127.0.0.1:", ntohs(bound.sin_port));
  EXPECT_THAT(DiagnoseListenFailure(*ParseListenAddress(text), text),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(text)));
}

}  // namespace
}  // namespace tessera::coordinator
