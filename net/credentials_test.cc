// Real handshakes on loopback, and what is said of files that cannot be used.
#include "net/credentials.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/test_certificates.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"

namespace tessera {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A path that no test before used.
std::string TempPath(const std::string& name) {
  std::string folder = ::testing::TempDir() + "/credentials-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return absl::StrCat(folder, "/", name);
}

class CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TestCertificates::Make();
    if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
    ASSERT_OK(made);
    certificates_ = *std::move(made);
  }
  void Serve(const TlsFiles& tls) {
    ASSERT_OK_AND_ASSIGN(auto credentials, MakeServerCredentials("127.0.0.1:0", tls, false));
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(&jobs_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  // A call as `tls`. The service has no implementation, so Unimplemented is what it answers.
  absl::Status Call(const TlsFiles& tls) {
    auto channel = OpenChannel({address_, tls}, grpc::ChannelArguments());
    if (!channel.ok()) return channel.status();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::ListJobsResponse response;
    return FromGrpcStatus(v1::Jobs::NewStub(*channel)->ListJobs(&context, {}, &response));
  }

  std::unique_ptr<TestCertificates> certificates_;
  v1::Jobs::Service jobs_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(CredentialsTest, OnlyWhoTrustEachOtherSpeak) {
  Serve(certificates_->server());
  EXPECT_THAT(Call(certificates_->client()), StatusIs(absl::StatusCode::kUnimplemented, _));
  EXPECT_THAT(Call(certificates_->stranger()), StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(Call({}), StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(Call(certificates_->client_of_other_ca()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address_)));
}

TEST_F(CredentialsTest, TlsClientRefusesAPlainServer) {
  Serve({});
  EXPECT_THAT(Call({}), StatusIs(absl::StatusCode::kUnimplemented, _));
  EXPECT_THAT(Call(certificates_->client()), StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_F(CredentialsTest, FileThatCannotBeUsedIsNamed) {
  TlsFiles files = certificates_->client();
  files.key_path = "/nonexistent/key.pem";
  EXPECT_THAT(CheckDialOptions({"127.0.0.1:1", files}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(files.key_path)));
  files.key_path = files.certificate_path;
  EXPECT_THAT(CheckDialOptions({"127.0.0.1:1", files}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(files.certificate_path)));
  files = certificates_->server();
  files.ca_path = "/tmp";  // A folder.
  EXPECT_THAT(MakeServerCredentials("0.0.0.0:0", files, false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'/tmp': is a folder")));
}

TEST_F(CredentialsTest, FileThatNeverEndsOrIsNoneIsRefusedAtOnce) {
  const std::string pipe = TempPath("pipe"), large = TempPath("large");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(large) << std::string((1 << 20) + 1, '-');
  const std::pair<std::string, const char*> kCases[] = {
      {"/dev/zero", "is not a regular file"},
      {pipe, "is not a regular file"},
      {large, "has more than 1048576 bytes"},
  };
  for (const auto& [path, why] : kCases) {
    TlsFiles files = certificates_->client();
    files.ca_path = path;
    EXPECT_THAT(CheckDialOptions({"127.0.0.1:1", files}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("TLS file '", path, "': ", why))));
  }
}

TEST_F(CredentialsTest, KeyWithAPassphraseIsRefusedByName) {
  TlsFiles files = certificates_->client();
  files.key_path = TempPath("key.pem");
  for (const char* text :
       {"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA==\n"
        "-----END RSA PRIVATE KEY-----\n"}) {
    std::ofstream(files.key_path) << text;
    EXPECT_THAT(CheckDialOptions({"127.0.0.1:1", files}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(files.key_path), HasSubstr("is encrypted"))));
  }
}

TEST(KeepaliveTest, ArgumentsAreWhatIsAskedForWithinWhatServersPermitAndNumbersHold) {
  constexpr int kMost = std::numeric_limits<int>::max();
  struct Case {
    absl::Duration asked_for;
    int milliseconds;
  };
  const Case kCases[] = {
      {absl::Milliseconds(1500), 1500},   {absl::Seconds(1), 1000},
      {absl::Milliseconds(999), 1000},    {absl::ZeroDuration(), 1000},
      {absl::Seconds(-5), 1000},          {-absl::InfiniteDuration(), 1000},
      {absl::Milliseconds(kMost), kMost}, {absl::Milliseconds(kMost) * 4, kMost},
      {absl::InfiniteDuration(), kMost},
  };
  for (const Case& one : kCases) {
    SCOPED_TRACE(absl::FormatDuration(one.asked_for));
    for (const bool is_interval : {true, false}) {
      Keepalive keepalive = {absl::Seconds(7), absl::Seconds(9)};
      (is_interval ? keepalive.interval : keepalive.timeout) = one.asked_for;
      grpc::ChannelArguments arguments;
      SetKeepalive(keepalive, &arguments);
      const grpc_channel_args made = arguments.c_channel_args();
      std::map<std::string, int> numbers;
      for (size_t i = 0; i < made.num_args; ++i) {
        if (made.args[i].type == GRPC_ARG_INTEGER)
          numbers[made.args[i].key] = made.args[i].value.integer;
      }
      EXPECT_EQ(numbers[GRPC_ARG_KEEPALIVE_TIME_MS], is_interval ? one.milliseconds : 7000);
      EXPECT_EQ(numbers[GRPC_ARG_KEEPALIVE_TIMEOUT_MS], is_interval ? 9000 : one.milliseconds);
      EXPECT_EQ(numbers.count(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA), 1);
    }
  }
}

TEST_F(CredentialsTest, OtherMachinesAreNotDialledWithoutTls) {
  EXPECT_THAT(CheckDialOptions({"node7:7070"}), StatusIs(absl::StatusCode::kFailedPrecondition, _));
  EXPECT_OK(CheckDialOptions({"node7:7070", {}, /*insecure_connect=*/true}));
  EXPECT_OK(CheckDialOptions({"node7:7070", certificates_->client()}));
}

}  // namespace
}  // namespace tessera
