#include "net/end_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// The client's and the server's side.
std::pair<UniqueFd, UniqueFd> ConnectOverTcp() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  UniqueFd client(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  return {std::move(client), UniqueFd(accept(listener.get(), nullptr, nullptr))};
}

std::string PeerOfServer(const UniqueFd& client) {
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(client.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
}

bool HasEnded(const UniqueFd& side) {
  char byte = 0;
  return recv(side.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

TEST(EndConnectionTest, ThatOfThisPeerEndsAndNoOther) {
  const auto [client, server] = ConnectOverTcp();
  const auto [other_client, other_server] = ConnectOverTcp();
  EXPECT_TRUE(EndConnection(PeerOfServer(client)));
  EXPECT_TRUE(HasEnded(client));
  EXPECT_FALSE(HasEnded(other_client));
  EXPECT_FALSE(HasEnded(other_server));
}

TEST(EndConnectionTest, ThatOfALocalListenerIsKnownByItsDescriptor) {
  int sides[2] = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sides), 0);
  const UniqueFd client(sides[0]), server(sides[1]);
  EXPECT_TRUE(EndConnection(absl::StrCat("fd:", server.get())));
  EXPECT_TRUE(HasEnded(client));
}

TEST(EndConnectionTest, OneThatIsNotThereIsNoError) {
  EXPECT_FALSE(EndConnection("ipv4:127.0.0.1:1"));
  EXPECT_FALSE(EndConnection("fd:x"));
  EXPECT_FALSE(EndConnection(""));
}

}  // namespace
}  // namespace tessera
