#include "net/listen_tcp.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(DiagnoseListenFailureTest, NamesAPortInUse) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in bound = {};
  bound.sin_family = AF_INET;
  bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(bound);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&bound), size), 0);
  ASSERT_EQ(listen(fd.get(), 1), 0);
  ASSERT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  const std::string text = absl::StrCat("127.0.0.1:", ntohs(bound.sin_port));
  EXPECT_THAT(DiagnoseListenFailure(*ParseServerAddress(text), text),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(text)));
}

}  // namespace
}  // namespace tessera
