// What one client may take of a whole server, over real gRPC.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/service/server.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "net/test_certificates.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/live_put.grpc.pb.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr int kMaxCalls = 8;

class LimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = TestCertificates::Make();
    if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
    ASSERT_OK(made);
    certificates_ = *std::move(made);
    options_.listen_address = "127.0.0.1:0";
    options_.tls = certificates_->server();
    options_.max_calls = kMaxCalls;
  }
  void Start() { ASSERT_OK_AND_ASSIGN(server_, CoordinatorServer::Start(options_)); }
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& who) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return *OpenChannel({absl::StrCat("127.0.0.1:", server_->port()), certificates_->FilesOf(who)},
                        arguments);
  }
  absl::Status Create(const std::string& who, const std::string& job) {
    grpc::ClientContext context;
    v1::Job reply;
    return FromGrpcStatus(
        v1::Jobs::NewStub(ChannelOf(who))
            ->CreateJob(&context, MakeCreateJob(absl::StrCat("r-", job), job, /*world_size=*/1),
                        &reply));
  }
  absl::Status Get(const std::string& who, const std::string& job) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_job_id(job);
    v1::Job reply;
    return FromGrpcStatus(v1::Jobs::NewStub(ChannelOf(who))->GetJob(&context, request, &reply));
  }

  CoordinatorServer::Options options_;
  std::unique_ptr<TestCertificates> certificates_;
  std::unique_ptr<CoordinatorServer> server_;
};

// A watch that has seen the job.
struct Watch {
  Watch(const std::shared_ptr<grpc::Channel>& channel, const std::string& job)
      : stub(v1::Jobs::NewStub(channel)) {
    v1::WatchJobRequest request;
    request.set_job_id(job);
    stream = stub->WatchJob(&context, request);
    v1::Job seen;
    has_begun = stream->Read(&seen);
  }
  absl::Status End() {
    context.TryCancel();
    v1::Job seen;
    while (stream->Read(&seen)) continue;
    return FromGrpcStatus(stream->Finish());
  }

  grpc::ClientContext context;
  std::unique_ptr<v1::Jobs::Stub> stub;
  std::unique_ptr<grpc::ClientReader<v1::Job>> stream;
  bool has_begun = false;
};

// As a program does whose deadlines are too short: as many calls as one connection has, each reset
// while the coordinator deals with it or before.
TEST_F(LimitsTest, ClientThatCancels64CallsAgainAndAgainIsServedOn) {
  options_.max_calls = CoordinatorServer::Options().max_calls;
  Start();
  if (IsSkipped() || HasFatalFailure()) return;
  const auto stub = v1::Jobs::NewStub(ChannelOf("client"));
  v1::GetJobRequest request;
  request.set_job_id("none");
  for (int round = 0; round < 50; ++round) {
    grpc::CompletionQueue queue;
    struct Call {
      grpc::ClientContext context;
      v1::Job reply;
      grpc::Status status;
      std::unique_ptr<grpc::ClientAsyncResponseReader<v1::Job>> reader;
    };
    std::vector<Call> calls(64);
    for (Call& call : calls) {
      call.reader = stub->AsyncGetJob(&call.context, request, &queue);
      call.reader->Finish(&call.reply, &call.status, &call);
    }
    for (Call& call : calls) call.context.TryCancel();
    for (size_t i = 0; i < calls.size(); ++i) {
      void* tag = nullptr;
      bool ok = false;
      ASSERT_TRUE(queue.Next(&tag, &ok));
    }
    grpc::ClientContext context;
    v1::Job job;
    const grpc::Status status = stub->GetJob(&context, request, &job);
    ASSERT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND)
        << "round " << round << ": " << status.error_message();
  }
}

TEST_F(LimitsTest, ClientOfTooManyCallsThatWaitIsToldSoAndItsOthersAndOtherClientsAreServed) {
  Start();
  ASSERT_OK(Create("client", "his"));
  ASSERT_OK(Create("other-client", "others"));
  const auto channel = ChannelOf("client");
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < kMaxCalls / 2; ++i) {
    watches.push_back(std::make_unique<Watch>(channel, "his"));
    ASSERT_TRUE(watches.back()->has_begun) << i;
  }
  Watch more(channel, "his");
  EXPECT_FALSE(more.has_begun);
  EXPECT_THAT(FromGrpcStatus(more.stream->Finish()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("'certificate:client' has 4 calls that wait"),
                             HasSubstr("--max-calls"), HasSubstr("end some"))));
  EXPECT_OK(Get("client", "his"));
  Watch of_other(ChannelOf("other-client"), "others");
  EXPECT_TRUE(of_other.has_begun);
  of_other.End().IgnoreError();
  for (const auto& watch : watches) watch->End().IgnoreError();
}

TEST_F(LimitsTest, StreamThatSaysNothingEndsByNameAndAWorkersDoes) {
  options_.request_timeout = absl::Milliseconds(50);
  Start();
  const auto is_late = [](const std::string& who) {
    return StatusIs(absl::StatusCode::kDeadlineExceeded,
                    HasSubstr(absl::StrCat("client 'certificate:", who,
                                           "' has not sent the request within 50ms")));
  };
  grpc::ClientContext putting, connecting;
  const auto client = ChannelOf("client");
  const auto put = v1::LivePut::NewStub(client);
  v1::PutReply reply;
  EXPECT_THAT(FromGrpcStatus(put->PutLiveState(&putting, &reply)->Finish()), is_late("client"));
  const auto member = v1::Membership::NewStub(ChannelOf("worker"));
  EXPECT_THAT(FromGrpcStatus(member->Connect(&connecting)->Finish()),
              is_late("tessera:worker:node"));
}

TEST_F(LimitsTest, WhoIsNoWorkerHoldsNoStreamOfOne) {
  Start();
  grpc::ClientContext context;
  const auto member = v1::Membership::NewStub(ChannelOf("client"));
  EXPECT_THAT(FromGrpcStatus(member->Connect(&context)->Finish()),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("'certificate:client' is no worker")));
}

TEST_F(LimitsTest, WorkerConnectsHoweverManyCallsItsIdentityHas) {
  Start();
  ASSERT_OK(Create("client", "job"));
  const auto greedy_channel = ChannelOf("worker");
  std::vector<std::thread> greedy;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (int i = 0; i < 2 * kMaxCalls; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    greedy.emplace_back([&greedy_channel, context = contexts.back().get()] {
      const auto put = v1::LivePut::NewStub(greedy_channel);
      v1::PutReply reply;
      EXPECT_FALSE(put->PutLiveState(context, &reply)->Finish().ok());
    });
  }
  TestWorker worker(ChannelOf("worker"), "node");
  EXPECT_TRUE(worker.Register(1).ok());
  worker.Connect();
  worker.Await(v1::CoordinatorCommand::kPrepare);
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& thread : greedy) thread.join();
}

TEST_F(LimitsTest, RequestThatIsTooLongIsRefusedByItsBytes) {
  Start();
  EXPECT_THAT(Get("client", std::string(2 << 20, 'j')),
              StatusIs(kExhausted, HasSubstr("bytes, and may have 1048576")));
}

TEST_F(LimitsTest, ModelOf100000ParametersIsCreatedAndSeen) {
  Start();
  v1::CreateJobRequest request = MakeCreateJob("r", "large", /*world_size=*/1);
  v1::UnitSpec* unit = request.mutable_model()->mutable_units(0);
  const v1::ParameterSpec one = unit->parameters(0);
  for (int i = 0; i < 90'000; ++i) {
    v1::ParameterSpec* parameter = unit->add_parameters();
    *parameter = one;
    parameter->set_name(absl::StrCat("layers.", i, ".", std::string(150, 'p')));
  }
  grpc::ClientContext context, getting;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  const auto channel = *OpenChannel(
      {absl::StrCat("127.0.0.1:", server_->port()), certificates_->FilesOf("client")}, arguments);
  const auto jobs = v1::Jobs::NewStub(channel);
  v1::Job created, seen;
  ASSERT_OK(FromGrpcStatus(jobs->CreateJob(&context, request, &created)));
  v1::GetJobRequest get;
  get.set_job_id("large");
  ASSERT_OK(FromGrpcStatus(jobs->GetJob(&getting, get, &seen)));
  EXPECT_EQ(seen.model().units(0).parameters_size(), unit->parameters_size());
}

TEST_F(LimitsTest, CompressedRequestIsNotTaken) {
  Start();
  ASSERT_OK(Create("client", "job"));
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::GetJobRequest request;
  request.set_job_id(std::string(10'000, 'j'));
  v1::Job reply;
  const grpc::Status status =
      v1::Jobs::NewStub(ChannelOf("client"))->GetJob(&context, request, &reply);
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(absl::StrContains(status.error_message(), "job id"))
      << "it was decompressed: " << status.error_message();
}

TEST_F(LimitsTest, OwnerOfTooManyJobsIsToldSoAndOthersCreateTheirs) {
  options_.max_jobs_of_owner = 1;
  Start();
  ASSERT_OK(Create("client", "first"));
  EXPECT_OK(Create("client", "first")) << "of which there is one already";
  EXPECT_THAT(Create("client", "second"),
              StatusIs(kExhausted, AllOf(HasSubstr("'certificate:client' has 1 jobs"),
                                         HasSubstr("--max-jobs-of-owner"))));
  EXPECT_OK(Create("other-client", "second"));
  EXPECT_OK(Create("operator", "third"));
  EXPECT_OK(Create("operator", "fourth"));
}

}  // namespace
}  // namespace tessera::coordinator
