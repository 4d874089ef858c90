// The coordinator's part in a hand-over, over real gRPC. The test plays the worker, the trainers of
// both jobs, and people.
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/service/server.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/hand_over.grpc.pb.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;
using Command = v1::CoordinatorCommand;

constexpr int64_t kNumel = int64_t{1} << 26;

class HandOverServiceTest : public ::testing::Test {
 protected:
  // A job "gpt" with one rank and one parameter, which is handed over at step 0.
  void Start(absl::Duration client_timeout = absl::Minutes(1)) {
    CoordinatorServer::Options options;
    options.listen_address = "127.0.0.1:0";
    options.worker_timeout = absl::Seconds(60);
    options.live_client_timeout = client_timeout;
    ASSERT_OK_AND_ASSIGN(server_, CoordinatorServer::Start(options));
    channel_ = NewChannel();
    stub_ = v1::HandOvers::NewStub(channel_);
    worker_ = std::make_unique<TestWorker>(channel_, "a");
    ASSERT_TRUE(worker_->Register(1).ok());
    worker_->Connect();
    v1::CreateJobRequest request = MakeCreateJob("r1", "gpt", 1, 0);
    v1::ParameterSpec* parameter = request.mutable_model()->mutable_units(0)->mutable_parameters(0);
    parameter->clear_shape();
    parameter->add_shape(kNumel);
    grpc::ClientContext context;
    ASSERT_OK(FromGrpcStatus(v1::Jobs::NewStub(channel_)->CreateJob(&context, request, &job_)));
    worker_->Await(Command::kPrepare);
    worker_->Prepared("gpt", 1, 0);
    EXPECT_FALSE(worker_->Await(Command::kStart).start().frozen());
  }
  void HandOver() {
    ASSERT_OK(Offer(Offered()));
    worker_->Await(Command::kPrepare);
    worker_->Prepared("gpt", 2, 0);
    EXPECT_TRUE(worker_->Await(Command::kStart).start().frozen());
    EXPECT_THAT(Get().trainer_states(), ::testing::ElementsAre("mine"));
  }
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return *OpenChannel({absl::StrCat("127.0.0.1:", server_->port())}, args);
  }
  v1::OfferRequest Offered() const {
    v1::OfferRequest request;
    request.set_job_id("gpt");
    request.set_generation(job_.generation());
    request.set_epoch(1);
    request.set_trainer_state("mine");
    request.set_patience_ms(60'000);
    return request;
  }
  absl::Status Offer(const v1::OfferRequest& request) {
    grpc::ClientContext context;
    v1::HandOverInfo info;
    return FromGrpcStatus(stub_->Offer(&context, request, &info));
  }
  v1::HandOverInfo Get() {
    grpc::ClientContext context;
    v1::GetHandOverRequest request;
    request.set_job_id("gpt");
    v1::HandOverInfo info;
    EXPECT_OK(FromGrpcStatus(stub_->Get(&context, request, &info)));
    return info;
  }
  v1::ReadHandOverRequest ReadAll() {
    v1::ReadHandOverRequest request;
    request.set_job_id("gpt");
    request.set_generation(job_.generation());
    request.set_number(1);
    v1::LiveRange* range = request.add_ranges();
    range->set_array(v1::LIVE_STATE_ARRAY_PARAMETER);
    range->set_numel(kNumel);
    return request;
  }
  // Brings the worker's stream to where it sends pieces.
  void OpenRelay() {
    const std::string session = worker_->Await(Command::kServeState).serve_state().session();
    relay_context_ = std::make_unique<grpc::ClientContext>();
    relay_stub_ = v1::LiveRelay::NewStub(channel_);
    relay_ = relay_stub_->Relay(relay_context_.get());
    v1::LiveEvent event;
    event.mutable_hello()->set_session(session);
    event.mutable_hello()->set_worker_id("a");
    EXPECT_TRUE(relay_->Write(event));
    v1::LiveCommand command;
    EXPECT_TRUE(relay_->Read(&command));
    EXPECT_EQ(command.read().step(), 0);
    ASSERT_EQ(command.read().ranges_size(), 1);
    EXPECT_EQ(command.read().ranges(0).numel(), kNumel);
    event.mutable_copied()->set_trained_step(41);
    event.mutable_copied()->add_update_counts(40);
    EXPECT_TRUE(relay_->Write(event));
  }
  bool Piece(int64_t offset_elements, const std::string& data) {
    v1::LiveEvent event;
    event.mutable_piece()->set_offset_elements(offset_elements);
    event.mutable_piece()->set_data(data);
    return relay_->Write(event);
  }
  void AwaitRelayEnd() {
    v1::LiveCommand command;
    while (relay_->Read(&command)) {
    }
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::HandOvers::Stub> stub_;
  std::unique_ptr<TestWorker> worker_;
  v1::Job job_;
  std::unique_ptr<grpc::ClientContext> relay_context_;
  std::unique_ptr<v1::LiveRelay::Stub> relay_stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::LiveEvent, v1::LiveCommand>> relay_;
};

TEST_F(HandOverServiceTest, ReaderThatHangsIsCutOffAndTheWorkersStreamEnds) {
  Start(absl::Milliseconds(300));
  HandOver();
  grpc::ClientContext context;
  const auto stub = v1::HandOvers::NewStub(NewChannel());
  const auto reader = stub->Read(&context, ReadAll());
  OpenRelay();
  // Far more than all buffers on the way can hold.
  const std::string piece(256 << 10, 'x');
  int64_t offset_elements = 0;
  while (offset_elements < kNumel / 2 && Piece(offset_elements, piece)) offset_elements += 64 << 10;
  EXPECT_LT(offset_elements, kNumel / 2);
  AwaitRelayEnd();
  v1::HandOverReply reply;
  EXPECT_TRUE(reader->Read(&reply));
  EXPECT_EQ(reply.begin().trained_step(), 41);
  while (reader->Read(&reply)) {  // What was already sent.
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HandOverServiceTest, WorkerThatSendsWhatWasNotAskedForIsNamed) {
  Start();
  HandOver();
  const std::string four(4, 'x');
  for (const auto& [offset, data] :
       {std::pair<int64_t, std::string>{1, four}, {0, ""}, {0, "abc"}, {kNumel, four}}) {
    grpc::ClientContext context;
    const auto reader = stub_->Read(&context, ReadAll());
    OpenRelay();
    Piece(offset, data);
    v1::HandOverReply reply;
    while (reader->Read(&reply)) EXPECT_FALSE(reply.has_piece());
    EXPECT_THAT(FromGrpcStatus(reader->Finish()),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("worker 'a' sent data that was not requested")));
    AwaitRelayEnd();
  }
}

TEST_F(HandOverServiceTest, CancellingItEndsReadingsAndTheJobRunsOn) {
  Start();
  HandOver();
  grpc::ClientContext context;
  const auto reader = stub_->Read(&context, ReadAll());
  OpenRelay();
  auto end = std::async(std::launch::async, [this] {
    grpc::ClientContext context;
    v1::AwaitEndRequest request;
    request.set_job_id("gpt");
    request.set_generation(job_.generation());
    request.set_number(1);
    v1::HandOverInfo info;
    EXPECT_OK(FromGrpcStatus(stub_->AwaitEnd(&context, request, &info)));
    return info;
  });
  v1::CancelHandOverRequest cancel;
  cancel.set_job_id("gpt");
  v1::HandOverInfo info;
  grpc::ClientContext cancel_context;
  EXPECT_OK(FromGrpcStatus(stub_->Cancel(&cancel_context, cancel, &info)));
  EXPECT_EQ(info.phase(), v1::HAND_OVER_PHASE_CANCELLED);
  v1::HandOverReply reply;
  while (reader->Read(&reply)) {
  }
  EXPECT_THAT(FromGrpcStatus(reader->Finish()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no longer pending")));
  AwaitRelayEnd();
  worker_->Await(Command::kPrepare);
  worker_->Prepared("gpt", 3, 0);
  EXPECT_FALSE(worker_->Await(Command::kStart).start().frozen());
  EXPECT_EQ(end.get().phase(), v1::HAND_OVER_PHASE_CANCELLED);
}

TEST_F(HandOverServiceTest, FieldsOutOfBoundsAreRefusedByName) {
  Start();
  const auto refused = [&](const v1::OfferRequest& request, const std::string& field) {
    EXPECT_THAT(Offer(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  v1::OfferRequest bad = Offered();
  bad.set_job_id("No Id");
  refused(bad, "job");
  bad = Offered();
  bad.set_rank(-1);
  refused(bad, "rank");
  bad.set_rank(1);
  refused(bad, "no rank 1");
  bad = Offered();
  bad.set_patience_ms(-1);
  refused(bad, "patience_ms");
  bad = Offered();
  bad.set_trainer_state(std::string((64 << 10) + 1, 'x'));
  refused(bad, "trainer_state");
  HandOver();
  v1::ReadHandOverRequest beyond = ReadAll();
  beyond.mutable_ranges(0)->set_numel(kNumel + 1);
  grpc::ClientContext context;
  const auto reader = stub_->Read(&context, beyond);
  v1::HandOverReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_THAT(FromGrpcStatus(reader->Finish()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("elements")));
  v1::TakeOverRequest self;
  self.set_job_id("gpt");
  self.set_generation(job_.generation());
  self.set_number(1);
  self.set_taker_job_id("gpt");
  self.set_taker_generation(job_.generation());
  self.set_epoch(2);
  grpc::ClientContext self_context;
  v1::HandOverInfo info;
  EXPECT_THAT(FromGrpcStatus(stub_->TakeOver(&self_context, self, &info)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("take over itself")));
}

}  // namespace
}  // namespace tessera::coordinator
