#include "net/caller_identity.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/random_bytes.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/grpcpp.h"
#include "net/access_token.h"
#include "net/credentials.h"
#include "net/local_listener.h"
#include "net/test_certificates.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// Returns the identity of its caller.
class IdentityService : public v1::Jobs::Service {
 public:
  explicit IdentityService(const CallerIdentities* identities) : identities_(identities) {}

  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest*,
                      v1::Job* reply) override {
    if (block_) {
      began_.Notify();
      go_on_.WaitForNotification();
    }
    const absl::StatusOr<std::string> identity = identities_->Of(*context);
    if (identity.ok()) reply->set_job_id(*identity);
    if (block_) {
      blocked_ = identity.value_or("nobody");
      ended_.Notify();
    }
    return ToGrpcStatus(identity.status());
  }

  std::atomic<bool> block_ = false;
  absl::Notification began_, go_on_, ended_;  // Of the call that is blocked.
  std::string blocked_;                       // Its caller.

 private:
  const CallerIdentities* const identities_;
};

absl::StatusOr<std::string> Ask(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& token = "") {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (!token.empty()) context.AddMetadata(kTokenMetadata, token);
  v1::Job reply;
  const absl::Status status =
      FromGrpcStatus(v1::Jobs::NewStub(channel)->GetJob(&context, v1::GetJobRequest(), &reply));
  if (!status.ok()) return status;
  return reply.job_id();
}

class CallerIdentityTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = "/tmp/tessera-identity-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
    folder_ = folder;
  }
  void TearDown() override {
    if (local_ != nullptr) local_->Stop();
    if (server_ != nullptr) server_->Shutdown();
    std::filesystem::remove_all(folder_);
  }
  std::string socket_path() const { return folder_ + "/c.sock"; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void Serve(const TlsFiles& tls, const std::string& token) {
    ASSERT_OK_AND_ASSIGN(local_, LocalListener::Bind(socket_path()));
    identities_ = std::make_unique<CallerIdentities>(token, local_.get());
    service_ = std::make_unique<IdentityService>(identities_.get());
    ASSERT_OK_AND_ASSIGN(const auto credentials, MakeServerCredentials("127.0.0.1:0", tls, false));
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    ASSERT_OK(local_->Serve(server_.get()));
  }
  static bool CanConnectAsOthers() {
    bool can = false;
    std::thread([&] { can = syscall(SYS_setresuid, 12345, 12345, 12345) == 0; }).join();
    return can;
  }
  // A connection that this user makes; only root can for others.
  UniqueFd ConnectAs(uid_t user) {
    UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strcpy(address.sun_path, socket_path().c_str());
    std::thread([&] {  // The identity of this thread alone.
      if (user != geteuid()) {
        EXPECT_EQ(syscall(SYS_setresuid, user, user, user), 0);
      }
      EXPECT_EQ(connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
                0);
    })
        .join();
    EXPECT_EQ(fcntl(connection.get(), F_SETFL, O_NONBLOCK), 0);
    return connection;
  }
  absl::StatusOr<std::string> AskAs(uid_t user) {
    return Ask(grpc::CreateInsecureChannelFromFd("local", ConnectAs(user).Release()));
  }

  std::string folder_;
  std::unique_ptr<LocalListener> local_;
  std::unique_ptr<CallerIdentities> identities_;
  std::unique_ptr<IdentityService> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CallerIdentityTest, OverTcpWhoHasTheTokenIsTheServersUser) {
  const std::string token = RandomHex(32);
  ASSERT_NO_FATAL_FAILURE(Serve({}, token));
  const auto channel = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  EXPECT_EQ(Ask(channel, token).value_or(""), OwnIdentity());
  for (const std::string& wrong :
       {std::string(), token.substr(1), token.substr(0, 63), token + "a", std::string(64, 'a')}) {
    EXPECT_THAT(Ask(channel, wrong),
                StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("TESSERA_TOKEN_FILE")));
  }
}

TEST_F(CallerIdentityTest, ChannelsSendTheTokenOfTheirUserAlsoWhereItIsMadeLater) {
  const std::string path = folder_ + "/token";
  ASSERT_EQ(setenv("TESSERA_TOKEN_FILE", path.c_str(), 1), 0);
  const std::string token = RandomHex(32);
  ASSERT_NO_FATAL_FAILURE(Serve({}, token));
  ASSERT_OK_AND_ASSIGN(const auto channel, OpenChannel({address()}, grpc::ChannelArguments()));
  EXPECT_THAT(Ask(channel), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("token")));
  const UniqueFd file(open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  ASSERT_EQ(write(file.get(), token.data(), token.size()), 64);
  EXPECT_EQ(Ask(channel).value_or(""), OwnIdentity());
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(OpenChannel({address()}, grpc::ChannelArguments()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(path)));
}

TEST_F(CallerIdentityTest, WithoutATokenOfItsOwnTheServerKnowsNobodyOverTcp) {
  ASSERT_NO_FATAL_FAILURE(Serve({}, ""));
  const auto channel = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  EXPECT_THAT(Ask(channel), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("token")));
}

TEST_F(CallerIdentityTest, CertificatesNameTheirHolders) {
  auto made = TestCertificates::Make();
  if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
  ASSERT_OK(made);
  ASSERT_NO_FATAL_FAILURE(Serve((*made)->server(), ""));
  const auto ask = [&](const std::string& name) {
    return Ask(*OpenChannel({address(), (*made)->FilesOf(name)}, grpc::ChannelArguments()));
  };
  EXPECT_EQ(ask("client").value_or(""), "certificate:client");
  EXPECT_EQ(ask("worker").value_or(""), "certificate:tessera:worker:node");
}

TEST_F(CallerIdentityTest, OnTheLocalSocketEachUserIsHimself) {
  ASSERT_NO_FATAL_FAILURE(Serve({}, RandomHex(32)));
  EXPECT_EQ(Ask(*OpenChannel({"unix:" + socket_path()}, grpc::ChannelArguments())).value_or(""),
            OwnIdentity());
  if (!CanConnectAsOthers()) GTEST_SKIP() << "this user cannot connect as others";
  EXPECT_EQ(AskAs(12345).value_or(""), "uid:12345");
  EXPECT_EQ(AskAs(12346).value_or(""), "uid:12346");
  EXPECT_EQ(AskAs(0).value_or(""), "uid:0");
}

// Its descriptor's number is free again.
TEST_F(CallerIdentityTest, CallWhoseConnectionHasEndedIsNotTakenForAnotherUsers) {
  if (!CanConnectAsOthers()) GTEST_SKIP() << "this user cannot connect as others";
  ASSERT_NO_FATAL_FAILURE(Serve({}, RandomHex(32)));
  service_->block_ = true;
  auto channel = grpc::CreateInsecureChannelFromFd("local", ConnectAs(20001).Release());
  grpc::ClientContext context;
  v1::Job reply;
  std::thread caller(
      [&] { (void)v1::Jobs::NewStub(channel)->GetJob(&context, v1::GetJobRequest(), &reply); });
  service_->began_.WaitForNotification();
  service_->block_ = false;
  context.TryCancel();
  caller.join();
  channel.reset();
  std::vector<std::shared_ptr<grpc::Channel>> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(grpc::CreateInsecureChannelFromFd("local", ConnectAs(20002).Release()));
    EXPECT_EQ(Ask(others.back()).value_or(""), "uid:20002");
  }
  service_->block_ = true;
  service_->go_on_.Notify();
  service_->ended_.WaitForNotification();
  EXPECT_EQ(service_->blocked_, "uid:20001");
  service_->block_ = false;
}

TEST_F(CallerIdentityTest, ConnectionsThatComeAndGoNeverHaveAnothersIdentity) {
  if (!CanConnectAsOthers()) GTEST_SKIP() << "this user cannot connect as others";
  ASSERT_NO_FATAL_FAILURE(Serve({}, RandomHex(32)));
  std::vector<std::thread> users;
  for (uid_t user = 20001; user <= 20004; ++user) {
    users.emplace_back([this, user] {
      for (int i = 0; i < 30; ++i)
        EXPECT_EQ(AskAs(user).value_or("nobody"), absl::StrCat("uid:", user));
    });
  }
  for (std::thread& thread : users) thread.join();
}

TEST_F(CallerIdentityTest, SocketOfAProcessThatEndedIsTakenOverAndOneInUseIsNot) {
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strcpy(address.sun_path, socket_path().c_str());
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_NO_FATAL_FAILURE(Serve({}, RandomHex(32)));
  EXPECT_THAT(LocalListener::Bind(socket_path()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(socket_path())));
  const std::string file = folder_ + "/file";
  close(open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_THAT(LocalListener::Bind(file),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("something else")));
  // A socket of another type that a process has.
  const std::string other = folder_ + "/other";
  const UniqueFd packets(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, other.c_str());
  ASSERT_EQ(bind(packets.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(packets.get(), 1), 0);
  EXPECT_THAT(LocalListener::Bind(other),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(other)));
  EXPECT_EQ(access(other.c_str(), F_OK), 0);
  EXPECT_THAT(LocalListener::Bind(std::string(200, 'p')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 107 bytes")));
}

}  // namespace
}  // namespace tessera
