// Who gets connections of a server, and how many.
#include "net/tcp_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/steady_time.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class TcpListenerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    ASSERT_OK_AND_ASSIGN(const ServerAddress address, ParseServerAddress("0.0.0.0:0"));
    ASSERT_OK_AND_ASSIGN(listener_, TcpListener::Bind(address, "0.0.0.0:0"));
    grpc::ServerBuilder builder;
    listener_->AddTo(&builder, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    ASSERT_OK(listener_->Serve());
  }
  void TearDown() override {
    LimitTo(before_.rlim_cur);
    listener_->Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  // The descriptors that this process may have. Clients are of this process, too.
  void LimitTo(size_t count) {
    const rlimit limit = {count, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  static UniqueFd Socket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  // From an address of this machine, "127.0.0.2" or so.
  UniqueFd Connect(UniqueFd fd, const std::string& from) const {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = inet_addr(from.c_str());
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(listener_->port());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  // Whether a client hears of the server, which tells its settings, and not of the connection's end.
  static bool IsServed(const UniqueFd& connection, int within_ms = 20'000) {
    const timeval timeout = {within_ms / 1000, within_ms % 1000 * 1000};
    setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    char byte;
    return recv(connection.get(), &byte, 1, MSG_PEEK) == 1;
  }
  // Connects until one is not served.
  std::vector<UniqueFd> TakeAll(const std::string& from) const {
    std::vector<UniqueFd> connections;
    while (true) {
      connections.push_back(Connect(Socket(), from));
      if (IsServed(connections.back())) continue;
      connections.pop_back();
      return connections;
    }
  }

  rlimit before_ = {};
  grpc::CallbackGenericService service_;
  std::unique_ptr<TcpListener> listener_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(TcpListenerTest, OneAddressGetsHalfOfTheConnectionsAndTheNextOneHalfOfTheRest) {
  LimitTo(400);  // So of 200.
  std::vector<UniqueFd> first = TakeAll("127.0.0.1");
  EXPECT_EQ(first.size(), 100u);
  EXPECT_EQ(TakeAll("127.0.0.2").size(), 50u);
  const std::vector<UniqueFd> third = TakeAll("127.0.0.3");
  EXPECT_GE(third.size(), 25u);  // Those of the second one end meanwhile.
  // What has ended counts no more.
  first.clear();
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  std::vector<UniqueFd> fourth;
  while (fourth.size() < 75 && SteadyNow() < deadline) {
    for (UniqueFd& connection : TakeAll("127.0.0.4")) fourth.push_back(std::move(connection));
  }
  EXPECT_GE(fourth.size(), 75u);
}

TEST_F(TcpListenerTest, ConnectionsWaitWhileTheProcessHasNoDescriptor) {
  UniqueFd socket = Socket();
  LimitTo(3);
  const UniqueFd connection = Connect(std::move(socket), "127.0.0.1");
  EXPECT_FALSE(IsServed(connection, 300));
  LimitTo(before_.rlim_cur);
  EXPECT_TRUE(IsServed(connection));
}

TEST_F(TcpListenerTest, ListensAtAllAddressesOfBothFamilies) {
  const UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) != 0)
    GTEST_SKIP() << "this machine has no IPv6";
  for (const char* to : {"127.0.0.1", "[::1]"}) {
    const auto channel = grpc::CreateChannel(absl::StrCat(to, ":", listener_->port()),
                                             grpc::InsecureChannelCredentials());
    EXPECT_TRUE(
        channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)))
        << to;
  }
}

TEST(TcpListenerBindTest, AddressThatIsTakenIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto any, ParseServerAddress("127.0.0.1:0"));
  ASSERT_OK_AND_ASSIGN(const auto first, TcpListener::Bind(any, "127.0.0.1:0"));
  const std::string text = absl::StrCat("127.0.0.1:", first->port());
  EXPECT_THAT(TcpListener::Bind(*ParseServerAddress(text), text).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(text)));
}

}  // namespace
}  // namespace tessera
