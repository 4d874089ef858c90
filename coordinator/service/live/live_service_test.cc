// The coordinator's part in reading a job's state, over real gRPC; the test is both workers and the
// client.
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/service/server.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Command = v1::CoordinatorCommand;

// A worker's stream of a session.
class Relay {
 public:
  Relay(const std::shared_ptr<grpc::Channel>& channel, TestWorker* worker, const std::string& id)
      : Relay(channel, id, worker->Await(Command::kServeState).serve_state().session()) {}
  Relay(const std::shared_ptr<grpc::Channel>& channel, const std::string& id,
        const std::string& session)
      : stub_(v1::LiveRelay::NewStub(channel)), stream_(stub_->Relay(&context_)) {
    v1::LiveEvent hello;
    hello.mutable_hello()->set_session(session);
    hello.mutable_hello()->set_worker_id(id);
    stream_->Write(hello);
  }
  ~Relay() { context_.TryCancel(); }

  v1::LiveCommand Read() {
    v1::LiveCommand command;
    EXPECT_TRUE(stream_->Read(&command));
    return command;
  }
  void Held(int64_t step) {
    EXPECT_TRUE(Read().has_hold());
    v1::LiveEvent event;
    event.mutable_held()->set_step(step);
    EXPECT_TRUE(stream_->Write(event));
  }
  void Copied(int64_t step) {
    EXPECT_EQ(Read().copy().step(), step);
    v1::LiveEvent event;
    event.mutable_copied()->set_trained_step(step + 100);
    event.mutable_copied()->add_update_counts(7);
    EXPECT_TRUE(stream_->Write(event));
  }
  bool Piece(int64_t offset_elements, const std::string& data) {
    v1::LiveEvent event;
    event.mutable_piece()->set_offset_elements(offset_elements);
    event.mutable_piece()->set_data(data);
    return stream_->Write(event);
  }
  void Fail(absl::StatusCode code, const std::string& message) {
    v1::LiveEvent event;
    event.mutable_failure()->set_code(static_cast<int>(code));
    event.mutable_failure()->set_message(message);
    stream_->Write(event);
  }
  void AwaitEnd() {
    v1::LiveCommand command;
    while (stream_->Read(&command)) {
    }
  }
  absl::Status Finish() {
    stream_->WritesDone();
    AwaitEnd();
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::LiveRelay::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::LiveEvent, v1::LiveCommand>> stream_;
};

struct Got {
  absl::Status status;
  v1::LiveStateBegin begin;
  std::vector<v1::LiveTensorInfo> tensors;
  std::string data;
};

class LiveServiceTest : public ::testing::Test {
 protected:
  // A job "gpt" of one parameter, half of which each of the workers "a" and "b" has.
  void Start(int64_t numel, absl::Duration client_timeout = absl::Minutes(1)) {
    CoordinatorServer::Options options;
    options.listen_address = "127.0.0.1:0";
    options.spread_ranks = true;
    options.worker_timeout = absl::Seconds(60);
    options.live_client_timeout = client_timeout;
    ASSERT_OK_AND_ASSIGN(server_, CoordinatorServer::Start(options));
    channel_ = NewChannel();
    a_ = std::make_unique<TestWorker>(channel_, "a");
    b_ = std::make_unique<TestWorker>(channel_, "b");
    for (TestWorker* worker : {a_.get(), b_.get()}) {
      ASSERT_TRUE(worker->Register(1).ok());
      worker->Connect();
    }
    v1::CreateJobRequest request = MakeCreateJob("r1", "gpt", 2, 0);
    request.mutable_config()->set_shard_alignment_bytes(0);
    v1::ParameterSpec* parameter = request.mutable_model()->mutable_units(0)->mutable_parameters(0);
    parameter->clear_shape();
    parameter->add_shape(numel);
    grpc::ClientContext context;
    v1::Job job;
    ASSERT_OK(FromGrpcStatus(v1::Jobs::NewStub(channel_)->CreateJob(&context, request, &job)));
    for (TestWorker* worker : {a_.get(), b_.get()}) {
      worker->Await(Command::kPrepare);
      worker->Prepared("gpt", 1, 0);
    }
    for (TestWorker* worker : {a_.get(), b_.get()}) worker->Await(Command::kStart);
  }
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                     grpc::InsecureChannelCredentials(), args);
  }
  void DeleteJob() {
    grpc::ClientContext context;
    v1::DeleteJobRequest request;
    request.set_request_id("d1");
    request.set_job_id("gpt");
    v1::DeleteJobResponse response;
    EXPECT_OK(FromGrpcStatus(v1::Jobs::NewStub(channel_)->DeleteJob(&context, request, &response)));
  }
  static v1::LiveStateQuery Query() {
    v1::LiveStateQuery query;
    query.set_job_id("gpt");
    return query;
  }
  // Reads all, on a thread of its own.
  std::future<Got> Get() {
    return std::async(std::launch::async, [this] {
      grpc::ClientContext context;
      const auto stub = v1::LiveState::NewStub(channel_);
      const auto reader = stub->GetLiveState(&context, Query());
      Got got;
      v1::LiveStateReply reply;
      while (reader->Read(&reply)) {
        if (reply.has_begin()) got.begin = reply.begin();
        if (reply.has_tensor()) got.tensors.push_back(reply.tensor());
        if (reply.has_piece()) got.data += reply.piece().data();
      }
      got.status = FromGrpcStatus(reader->Finish());
      return got;
    });
  }
  std::unique_ptr<Relay> RelayOf(TestWorker* worker) {
    return std::make_unique<Relay>(channel_, worker, worker == a_.get() ? "a" : "b");
  }
  // Both workers up to where pieces follow.
  void OpenBoth() {
    ra_ = RelayOf(a_.get());
    rb_ = RelayOf(b_.get());
    ra_->Held(4);
    rb_->Held(5);
    ra_->Copied(5);
    rb_->Copied(5);
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<TestWorker> a_, b_;
  std::unique_ptr<Relay> ra_, rb_;
};

TEST_F(LiveServiceTest, NewestStepThatAnyHoldsIsCopiedByAllAndPiecesComeInOrder) {
  Start(6);
  auto get = Get();
  OpenBoth();
  EXPECT_TRUE(rb_->Piece(3, "444455556666"));
  EXPECT_TRUE(ra_->Piece(0, "1111"));
  EXPECT_TRUE(ra_->Piece(1, "22223333"));
  const Got got = get.get();
  EXPECT_OK(got.status);
  EXPECT_EQ(got.begin.step(), 5);
  EXPECT_EQ(got.begin.trained_step(), 105);
  EXPECT_EQ(got.begin.num_tensors(), 1);
  EXPECT_EQ(got.begin.size_bytes(), 24);
  ASSERT_EQ(got.tensors.size(), 1u);
  EXPECT_EQ(got.tensors[0].name(), "root.w");
  EXPECT_EQ(got.tensors[0].update_count(), 7);
  EXPECT_EQ(got.data, "111122223333444455556666");
}

TEST_F(LiveServiceTest, TryThatFailsIsMadeAgainWithNewStreams) {
  Start(2);
  auto get = Get();
  ra_ = RelayOf(a_.get());
  rb_ = RelayOf(b_.get());
  ra_->Held(4);
  rb_->Read();
  rb_->Fail(absl::StatusCode::kAborted, "held for too long");
  ra_->AwaitEnd();
  OpenBoth();
  EXPECT_TRUE(ra_->Piece(0, "1111"));
  EXPECT_TRUE(rb_->Piece(1, "2222"));
  const Got got = get.get();
  EXPECT_OK(got.status);
  EXPECT_EQ(got.data, "11112222");
}

TEST_F(LiveServiceTest, WorkerThatIsGoneIsUnavailableByNameAfterAFewTries) {
  Start(2);
  b_->Disconnect();
  EXPECT_THAT(Get().get().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("in 3 tries"), HasSubstr("worker 'b' is not connected"))));
}

TEST_F(LiveServiceTest, FullDiskOfAWorkerIsSaidAtOnce) {
  Start(2);
  auto get = Get();
  ra_ = RelayOf(a_.get());
  ra_->Read();
  ra_->Fail(absl::StatusCode::kResourceExhausted, "spool folder '/x': No space left on device");
  EXPECT_THAT(get.get().status, StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("worker 'a': spool folder '/x'")));
}

TEST_F(LiveServiceTest, WorkerThatEndsOrSendsOtherThingsWhileItServesIsNamed) {
  Start(4);
  auto get = Get();
  OpenBoth();
  EXPECT_TRUE(ra_->Piece(0, "1111"));
  EXPECT_OK(ra_->Finish());
  EXPECT_THAT(get.get().status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'a' ended its stream")));
  for (const auto& [offset, data] : std::vector<std::pair<int64_t, std::string>>{
           {1, "2222"}, {0, "111"}, {0, "111122223333"}, {0, ""}}) {
    get = Get();
    OpenBoth();
    EXPECT_TRUE(ra_->Piece(offset, data));
    EXPECT_THAT(get.get().status, StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("worker 'a' sent what it was not asked for")));
  }
}

class HangingClientTest : public LiveServiceTest, public ::testing::WithParamInterface<bool> {};

TEST_P(HangingClientTest, IsCutOffAndTheWorkersStreamsEndAlsoWhereTheJobIsDeleted) {
  Start(int64_t{1} << 26, absl::Milliseconds(300));
  grpc::ClientContext context;
  const auto stub = v1::LiveState::NewStub(NewChannel());
  const auto reader = stub->GetLiveState(&context, Query());
  OpenBoth();
  // Far more than all windows on the way have room for.
  const std::string piece(256 << 10, 'x');
  int64_t offset_elements = 0;
  while (offset_elements < int64_t{1} << 25 && ra_->Piece(offset_elements, piece)) {
    if (GetParam() && offset_elements == 0) DeleteJob();
    offset_elements += 64 << 10;
  }
  EXPECT_LT(offset_elements, int64_t{1} << 25);
  ra_->AwaitEnd();
  rb_->AwaitEnd();
  v1::LiveStateReply reply;
  while (reader->Read(&reply)) {  // What was on the way.
  }
  const grpc::StatusCode code = reader->Finish().error_code();
  // A write that waits for a client cannot end in anything else.
  EXPECT_TRUE(code == grpc::StatusCode::CANCELLED ||
              (GetParam() && code == grpc::StatusCode::ABORTED))
      << code;
}

INSTANTIATE_TEST_SUITE_P(Deleted, HangingClientTest, ::testing::Bool());

TEST_F(LiveServiceTest, ClientThatGoesAwayEndsTheWorkersStreams) {
  Start(4);
  grpc::ClientContext context;
  const auto stub = v1::LiveState::NewStub(channel_);
  const auto reader = stub->GetLiveState(&context, Query());
  OpenBoth();
  v1::LiveStateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  context.TryCancel();
  ra_->AwaitEnd();
  rb_->AwaitEnd();
  reader->Finish();
}

TEST_F(LiveServiceTest, DeletionOfTheJobEndsIt) {
  Start(4);
  auto get = Get();
  OpenBoth();
  DeleteJob();
  EXPECT_THAT(get.get().status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("'gpt' was deleted")));
  ra_->AwaitEnd();
  rb_->AwaitEnd();
}

TEST_F(LiveServiceTest, EndOfTheCoordinatorEndsIt) {
  Start(4);
  auto get = Get();
  OpenBoth();
  server_->Stop();
  EXPECT_FALSE(get.get().status.ok());
  ra_->AwaitEnd();
  rb_->AwaitEnd();
}

TEST_F(LiveServiceTest, StreamThatNobodyWaitsForIsRefused) {
  Start(4);
  EXPECT_THAT(Relay(channel_, "a", "0123").Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody waits")));
  auto get = Get();
  const std::string session = a_->Await(Command::kServeState).serve_state().session();
  EXPECT_THAT(Relay(channel_, "c", session).Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody waits")));
  DeleteJob();
  EXPECT_FALSE(get.get().status.ok());
}

}  // namespace
}  // namespace tessera::coordinator
