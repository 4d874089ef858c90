// What a server refuses to start with, and mTLS.
#include <chrono>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/service/server.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "net/test_certificates.h"
#include "proto/grpc_status.h"
#include "proto/hand_over.pb.h"
#include "proto/health.grpc.pb.h"
#include "proto/live_put.pb.h"
#include "proto/live_state.pb.h"
#include "proto/saves.pb.h"

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

TEST(ServerOptionsTest, HealthAnswersEveryCaller) {
  ASSERT_OK_AND_ASSIGN(const auto server, CoordinatorServer::Start(AnyPort()));
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server->port()),
                                           grpc::InsecureChannelCredentials());
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse reply;
  EXPECT_OK(FromGrpcStatus(stub->Check(&context, {}, &reply)));
  EXPECT_EQ(reply.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  grpc::ClientContext watching;
  EXPECT_EQ(stub->Watch(&watching, {})->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// By name, with a message that may mean anything.
absl::Status CallMethod(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::Slice nothing("");
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  grpc::Status status;
  grpc::CompletionQueue queue;
  const auto call = grpc::GenericStub(channel).PrepareUnaryCall(&context, name, request, &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return FromGrpcStatus(status);
}

TEST(ServerOptionsTest, EveryMethodOfTheProtosIsServedAndNoOther) {
  ASSERT_OK_AND_ASSIGN(const auto server, CoordinatorServer::Start(AnyPort()));
  const auto channel = *OpenChannel({absl::StrCat("127.0.0.1:", server->port())}, {});
  int num_methods = 0;
  for (const google::protobuf::Descriptor* message :
       {v1::GetJobRequest::descriptor(), v1::RequestSaveRequest::descriptor(),
        v1::LiveStateQuery::descriptor(), v1::PutRequest::descriptor(),
        v1::OfferRequest::descriptor()}) {
    for (int i = 0; i < message->file()->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor* service = message->file()->service(i);
      if (service->name() == "LiveFetch") continue;  // The workers'.
      for (int j = 0; j < service->method_count(); ++j, ++num_methods) {
        const std::string name =
            absl::StrCat("/", service->full_name(), "/", service->method(j)->name());
        EXPECT_FALSE(absl::IsUnimplemented(CallMethod(channel, name))) << name;
      }
    }
  }
  EXPECT_GT(num_methods, 20);
  EXPECT_TRUE(absl::IsUnimplemented(CallMethod(channel, "/tessera.v1.Jobs/Nothing")));
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
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(options.tls.key_path)));
}

}  // namespace
}  // namespace tessera::coordinator
