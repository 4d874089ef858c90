#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cli/fake_server.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "net/transport_security.h"
#include "proto/coordinator.grpc.pb.h"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CertsCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/tessera-certs-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    folder_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  CommandResult Make(std::vector<std::string> args) {
    args.insert(args.begin(), {"certs", "make", folder_});
    return RunTessera(args);
  }
  TlsFiles FilesOf(const std::string& name) const {
    return {absl::StrCat(folder_, "/", name, ".pem"), absl::StrCat(folder_, "/", name, ".key"),
            folder_ + "/ca.pem"};
  }
  std::string Content(const std::string& file) const {
    std::ostringstream content;
    content << std::ifstream(folder_ + "/" + file).rdbuf();
    return content.str();
  }
  // Whether a client with these files has a connection to a server of 127.0.0.1 with those.
  bool Connects(const TlsFiles& server, const TlsFiles& client) {
    const auto credentials = MakeServerCredentials("127.0.0.1:0", server, false);
    EXPECT_OK(credentials);
    v1::Jobs::Service service;  // A server polls for what it serves.
    grpc::ServerBuilder builder;
    builder.RegisterService(&service);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", *credentials, &port);
    const std::unique_ptr<grpc::Server> running = builder.BuildAndStart();
    DialOptions options;
    options.address = absl::StrCat("127.0.0.1:", port);
    options.tls = client;
    const auto channel = OpenChannel(options, grpc::ChannelArguments());
    EXPECT_OK(channel);
    grpc_connectivity_state state = (*channel)->GetState(/*try_to_connect=*/true);
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
    while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE &&
           (*channel)->WaitForStateChange(state, deadline)) {
      state = (*channel)->GetState(true);
    }
    return state == GRPC_CHANNEL_READY;
  }

  std::string folder_;
};

TEST_F(CertsCommandTest, WhatItMakesConnectsACluster) {
  const CommandResult made =
      Make({"--coordinator", "127.0.0.1", "--coordinator", "head.example", "--worker",
            "node1=127.0.0.1", "--user", "alice", "--operator", "carol", "--nodes", "dave"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const char* client : {"worker-node1", "user-alice", "operator-carol", "node"})
    EXPECT_TRUE(Connects(FilesOf("coordinator"), FilesOf(client))) << client;
  EXPECT_TRUE(Connects(FilesOf("worker-node1"), FilesOf("user-alice"))) << "workers serve too";
  EXPECT_FALSE(Connects(FilesOf("user-alice"), FilesOf("worker-node1")))
      << "a user's certificate is no server's";
}

TEST_F(CertsCommandTest, KeysAreForTheirOwnerAlone) {
  ASSERT_EQ(Make({"--user", "alice"}).exit_code, 0);
  for (const char* key : {"ca.key", "user-alice.key"}) {
    struct stat info = {};
    ASSERT_EQ(stat(absl::StrCat(folder_, "/", key).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << key;
  }
}

TEST_F(CertsCommandTest, SecondRunKeepsWhatIsThereAndAddsToIt) {
  ASSERT_EQ(Make({"--coordinator", "127.0.0.1"}).exit_code, 0);
  const std::string authority = Content("ca.pem"), coordinator = Content("coordinator.pem");
  const CommandResult again = Make({"--coordinator", "127.0.0.1", "--user", "bob"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr("kept " + folder_ + "/coordinator.pem"),
                               HasSubstr("made " + folder_ + "/user-bob.pem")));
  EXPECT_EQ(Content("ca.pem"), authority);
  EXPECT_EQ(Content("coordinator.pem"), coordinator);
  EXPECT_TRUE(Connects(FilesOf("coordinator"), FilesOf("user-bob")));
}

TEST_F(CertsCommandTest, OtherAuthoritysClientDoesNotConnect) {
  ASSERT_EQ(Make({"--coordinator", "127.0.0.1", "--user", "alice"}).exit_code, 0);
  const std::string other = folder_ + "/other";
  ASSERT_EQ(RunTessera({"certs", "make", other, "--user", "mallory"}).exit_code, 0);
  const TlsFiles mallory = {other + "/user-mallory.pem", other + "/user-mallory.key",
                            folder_ + "/ca.pem"};
  EXPECT_FALSE(Connects(FilesOf("coordinator"), mallory));
}

TEST_F(CertsCommandTest, WrongInputIsNamedAndMakesNothing) {
  const struct {
    std::vector<std::string> args;
    const char* error;
  } cases[] = {
      {{}, "for whom? --coordinator HOST"},
      {{"--coordinator", "a host"}, "'a host' is no host or IP address"},
      {{"--coordinator", "good,DNS:evil"}, "is no host or IP address"},
      {{"--worker", "../x=host"}, "--worker '../x'"},
      {{"--user", "../../etc/passwd"}, "--user '../../etc/passwd'"},
      {{"--user", "tessera:operator"}, "--user 'tessera:operator'"},
      {{"--user", std::string(65, 'x')}, "a certificate's has 1 to 64 bytes"},
      {{"--user", "alice", "--days", "0"}, "--days"},
  };
  for (const auto& one : cases) {
    const CommandResult result = Make(one.args);
    EXPECT_NE(result.exit_code, 0) << one.error;
    EXPECT_THAT(result.err, HasSubstr(one.error));
    std::filesystem::remove(folder_ + "/ca.pem");
    std::filesystem::remove(folder_ + "/ca.key");
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << one.error;
  }
}

TEST_F(CertsCommandTest, HalfAnAuthorityIsNotReplaced) {
  ASSERT_EQ(Make({"--user", "alice"}).exit_code, 0);
  std::filesystem::remove(folder_ + "/ca.key");
  EXPECT_THAT(Make({"--user", "bob"}).err, HasSubstr("ca.key is missing"));
  std::ofstream(folder_ + "/ca.key") << "no key";
  EXPECT_THAT(Make({"--user", "bob"}).err, HasSubstr("the authority's key and certificate"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/user-bob.key"));
}

}  // namespace
}  // namespace tessera::cli
