// What a server refuses to start with, and mTLS.
#include <chrono>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/service/server.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "net/test_certificates.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

CoordinatorServer::Options AnyPort() {
  CoordinatorServer::Options options;
  options.listen_address = "127.0.0.1:0";
  return options;
}

grpc::Status List(std::shared_ptr<grpc::Channel> channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::ListJobsResponse response;
  return v1::Jobs::NewStub(channel)->ListJobs(&context, {}, &response);
}

TEST(ServerOptionsTest, PortInUseIsNamed) {
  ASSERT_OK_AND_ASSIGN(const auto first, CoordinatorServer::Start(AnyPort()));
  CoordinatorServer::Options options;
  options.listen_address = absl::StrCat("127.0.0.1:", first->port());
  EXPECT_THAT(CoordinatorServer::Start(options),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(options.listen_address)));
}

TEST(ServerOptionsTest, OtherMachinesNeedTlsOrAnExplicitPermit) {
  CoordinatorServer::Options options;
  options.listen_address = "0.0.0.0:0";
  EXPECT_THAT(CoordinatorServer::Start(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--insecure-listen")));
  options.insecure_listen = true;
  EXPECT_OK(CoordinatorServer::Start(options));
}

TEST(ServerOptionsTest, BadOptionsAreRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CoordinatorServer::Options options = AnyPort();
  for (const char* address : {"nowhere", "unix:/tmp/nowhere.sock"}) {
    options.listen_address = address;
    EXPECT_THAT(CoordinatorServer::Start(options), StatusIs(kInvalid, HasSubstr(address)));
  }
  options = AnyPort();
  options.worker_timeout = options.heartbeat_interval;
  EXPECT_THAT(CoordinatorServer::Start(options), StatusIs(kInvalid, HasSubstr("worker timeout")));
  options = AnyPort();
  options.prepare_timeout = absl::ZeroDuration();
  EXPECT_THAT(CoordinatorServer::Start(options), StatusIs(kInvalid, HasSubstr("prepare timeout")));
  options = AnyPort();
  options.tls.certificate_path = "cert.pem";
  EXPECT_THAT(CoordinatorServer::Start(options), StatusIs(kInvalid, HasSubstr("TLS needs all")));
  options.tls.key_path = options.tls.ca_path = "/nonexistent/key.pem";
  EXPECT_THAT(CoordinatorServer::Start(options),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/key.pem")));
}

TEST(ServerOptionsTest, JournalThatCannotBeOpenedIsNamed) {
  CoordinatorServer::Options options = AnyPort();
  options.journal_path = "/nonexistent/journal.db";
  EXPECT_THAT(CoordinatorServer::Start(options),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/nonexistent/journal.db")));
  options.journal_path = "/tmp";
  EXPECT_THAT(CoordinatorServer::Start(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'/tmp': is a folder")));
}

TEST(ServerOptionsTest, HealthAndReflectionAnswer) {
  ASSERT_OK_AND_ASSIGN(const auto server, CoordinatorServer::Start(AnyPort()));
  const auto channel = *OpenChannel({absl::StrCat("127.0.0.1:", server->port())}, {});
  grpc::GenericStub stub(channel);
  const auto call = [&](const std::string& method, const std::string& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(request);
    const grpc::ByteBuffer message(&slice, 1);
    auto stream = stub.PrepareCall(&context, method, &queue);
    grpc::ByteBuffer reply;
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    stream->StartCall(nullptr);
    EXPECT_TRUE(next());
    stream->Write(message, nullptr);
    EXPECT_TRUE(next());
    stream->Read(&reply, nullptr);
    EXPECT_TRUE(next()) << method;
    context.TryCancel();
    grpc::Status ended;
    stream->Finish(&ended, nullptr);
    EXPECT_TRUE(next());
    queue.Shutdown();
    EXPECT_FALSE(next());
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (reply.Dump(&slices).ok()) {
      for (const grpc::Slice& s : slices) bytes.append(s.begin(), s.end());
    }
    return bytes;
  };
  // By their bytes on the wire, which needs no generated stubs. An empty health check asks for the
  // whole server; field 1 = 1 is SERVING. Field 7 of a reflection request lists the services.
  EXPECT_EQ(call("/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
  EXPECT_THAT(call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                   std::string("\x3a\x00", 2)),
              HasSubstr("tessera.v1.Jobs"));
}

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TestCertificates::Make();
    if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
    ASSERT_OK(made);
    certificates_ = *std::move(made);
  }
  static std::string Slurp(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static std::shared_ptr<grpc::Channel> ChannelAs(const TlsFiles& files, int port) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = Slurp(files.ca_path);
    if (!files.key_path.empty()) {
      ssl.pem_private_key = Slurp(files.key_path);
      ssl.pem_cert_chain = Slurp(files.certificate_path);
    }
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::SslCredentials(ssl));
  }
  std::unique_ptr<TestCertificates> certificates_;
};

TEST_F(TlsTest, OnlyClientsOfTheSameAuthorityAreServed) {
  CoordinatorServer::Options options;
  options.listen_address = "0.0.0.0:0";  // Permitted, with TLS.
  options.tls = certificates_->server();
  ASSERT_OK_AND_ASSIGN(const auto server, CoordinatorServer::Start(options));
  EXPECT_TRUE(List(ChannelAs(certificates_->client(), server->port())).ok());
  EXPECT_FALSE(List(ChannelAs(certificates_->stranger(), server->port())).ok());
  EXPECT_FALSE(List(ChannelAs({"", "", certificates_->ca()}, server->port())).ok());
  EXPECT_FALSE(List(*OpenChannel({absl::StrCat("127.0.0.1:", server->port())}, {})).ok());
}

TEST_F(TlsTest, KeyOfAnotherCertificateIsNamed) {
  CoordinatorServer::Options options = AnyPort();
  options.tls = certificates_->server();
  options.tls.key_path = certificates_->client().key_path;
  EXPECT_THAT(CoordinatorServer::Start(options),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(options.tls.key_path)));
}

}  // namespace
}  // namespace tessera::coordinator
