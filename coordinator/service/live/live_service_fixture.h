// The coordinator's part in reading a job's state, over real gRPC. The test plays both workers and
// the client.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_FIXTURE_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_FIXTURE_H_

#include <future>
#include <memory>
#include <string>
#include <vector>

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
#include "proto/live_state.grpc.pb.h"

namespace tessera::coordinator {

// A worker's stream of a session.
class Relay {
 public:
  Relay(const std::shared_ptr<grpc::Channel>& channel, TestWorker* worker, const std::string& id)
      : Relay(channel, id,
              worker->Await(v1::CoordinatorCommand::kServeState).serve_state().session()) {}
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
    Holds(step);
  }
  void Holds(int64_t step) {
    v1::LiveEvent event;
    event.mutable_held()->set_step(step);
    EXPECT_TRUE(stream_->Write(event));
  }
  void Send(const v1::LiveEvent& event) { EXPECT_TRUE(stream_->Write(event)); }
  void Copied(int64_t step, int num_parameters = 1) {
    EXPECT_EQ(Read().copy().step(), step);
    v1::LiveEvent event;
    event.mutable_copied()->set_trained_step(step + 100);
    for (int i = 0; i < num_parameters; ++i) event.mutable_copied()->add_update_counts(7);
    EXPECT_TRUE(stream_->Write(event));
  }
  // In a direct read.
  void Serving(int64_t step, const std::vector<std::string>& addresses) {
    EXPECT_EQ(Read().serve().step(), step);
    v1::LiveEvent event;
    event.mutable_serving()->set_trained_step(step + 100);
    event.mutable_serving()->add_update_counts(7);
    for (const std::string& address : addresses) event.mutable_serving()->add_addresses(address);
    EXPECT_TRUE(stream_->Write(event));
  }
  void Released() {
    v1::LiveEvent event;
    event.mutable_released();
    EXPECT_TRUE(stream_->Write(event));
  }
  void Sent() {
    v1::LiveEvent event;
    event.mutable_sent();
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
  v1::LiveSources sources;
  std::vector<v1::LiveTensorInfo> tensors;
  std::string data;
};

class LiveServiceTest : public ::testing::Test {
 protected:
  // A job "gpt" with one parameter; each of the workers "a" and "b" has half of it.
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
    v1::BufferSpec* buffer = request.mutable_model()->add_buffers();
    buffer->set_name("root.mask");
    buffer->set_dtype("BOOL");
    buffer->add_shape(2);
    buffer->add_shape(3);
    grpc::ClientContext context;
    v1::Job job;
    ASSERT_OK(FromGrpcStatus(v1::Jobs::NewStub(channel_)->CreateJob(&context, request, &job)));
    for (TestWorker* worker : {a_.get(), b_.get()}) {
      worker->Await(v1::CoordinatorCommand::kPrepare);
      worker->Prepared("gpt", 1, 0);
    }
    for (TestWorker* worker : {a_.get(), b_.get()}) worker->Await(v1::CoordinatorCommand::kStart);
  }
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return *OpenChannel({absl::StrCat("127.0.0.1:", server_->port())}, args);
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
  // Reads everything, on its own thread.
  std::future<Got> Get(const v1::LiveStateQuery& query = Query()) {
    return std::async(std::launch::async, [this, query] {
      grpc::ClientContext context;
      const auto stub = v1::LiveState::NewStub(channel_);
      const auto reader = stub->GetLiveState(&context, query);
      Got got;
      v1::LiveStateReply reply;
      while (reader->Read(&reply)) {
        if (reply.has_begin()) got.begin = reply.begin();
        if (reply.has_sources()) got.sources = reply.sources();
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
  // Brings both workers to where they send pieces.
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

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_SERVICE_FIXTURE_H_
