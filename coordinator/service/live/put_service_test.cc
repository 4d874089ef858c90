// The coordinator's part in setting a job's values, over real gRPC. The test plays both workers and
// the client.
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "coordinator/service/server.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/live_put.grpc.pb.h"

namespace tessera::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Command = v1::CoordinatorCommand;

// A worker's stream of a put.
class Relay {
 public:
  Relay(const std::shared_ptr<grpc::Channel>& channel, TestWorker* worker, const std::string& id)
      : Relay(channel, id, worker->Await(Command::kStagePut).stage_put().session()) {}
  Relay(const std::shared_ptr<grpc::Channel>& channel, const std::string& id,
        const std::string& session)
      : stub_(v1::LivePutRelay::NewStub(channel)), stream_(stub_->Relay(&context_)) {
    v1::PutEvent hello;
    hello.mutable_hello()->set_session(session);
    hello.mutable_hello()->set_worker_id(id);
    stream_->Write(hello);
  }
  ~Relay() { context_.TryCancel(); }

  v1::PutCommand Read() {
    v1::PutCommand command;
    EXPECT_TRUE(stream_->Read(&command));
    return command;
  }
  // The slots that the worker makes room for.
  v1::PutStage Ready() {
    const v1::PutCommand command = Read();
    EXPECT_TRUE(command.has_stage());
    v1::PutEvent event;
    event.mutable_ready();
    EXPECT_TRUE(stream_->Write(event));
    return command.stage();
  }
  // Takes what arrives before the offer: offsets and elements.
  std::vector<std::pair<int64_t, std::string>> TakeUntilOffer() {
    std::vector<std::pair<int64_t, std::string>> pieces;
    v1::PutEvent staged;
    staged.mutable_staged();
    while (true) {
      const v1::PutCommand command = Read();
      if (command.has_seal()) {
        EXPECT_TRUE(stream_->Write(staged));
      } else if (command.has_piece()) {
        pieces.emplace_back(command.piece().offset_elements(), command.piece().data());
      } else {
        EXPECT_TRUE(command.has_offer());
        return pieces;
      }
    }
  }
  void Applied(int64_t step) {
    v1::PutEvent event;
    event.mutable_applied()->set_step(step);
    event.mutable_applied()->set_trained_step(step - 1);
    stream_->Write(event);
  }
  void Withdrawn() {
    v1::PutEvent event;
    event.mutable_withdrawn();
    stream_->Write(event);
  }
  void Fail(absl::StatusCode code, const std::string& message) {
    v1::PutEvent event;
    event.mutable_failure()->set_code(static_cast<int>(code));
    event.mutable_failure()->set_message(message);
    stream_->Write(event);
  }
  absl::Status Finish() {
    stream_->WritesDone();
    v1::PutCommand command;
    while (stream_->Read(&command)) {
    }
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::LivePutRelay::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::PutEvent, v1::PutCommand>> stream_;
};

class PutServiceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kNumel = 10;

  // A job "gpt" with one parameter; each of the workers "a" and "b" has half of it.
  void Start(absl::Duration client_timeout = absl::Minutes(1)) {
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
    name_ = parameter->name();
    parameter->clear_shape();
    parameter->add_shape(kNumel);
    v1::BufferSpec* buffer = request.mutable_model()->add_buffers();
    buffer->set_name("table");
    buffer->set_dtype("I16");
    buffer->add_shape(4);
    grpc::ClientContext context;
    v1::Job job;
    ASSERT_OK(FromGrpcStatus(v1::Jobs::NewStub(channel_)->CreateJob(&context, request, &job)));
    for (TestWorker* worker : {a_.get(), b_.get()}) {
      worker->Await(Command::kPrepare);
      worker->Prepared("gpt", 1, 0);
    }
    for (TestWorker* worker : {a_.get(), b_.get()}) worker->Await(Command::kStart);
  }
  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return *OpenChannel({"127.0.0.1:" + std::to_string(server_->port())}, args);
  }

  // A client that sends everything and waits, or sends less.
  std::future<absl::Status> Put(bool whole = true, int64_t wait_ms = 60'000) {
    return std::async(std::launch::async, [=]() -> absl::Status {
      const auto stub = v1::LivePut::NewStub(NewChannel());
      grpc::ClientContext context;
      const auto stream = stub->PutLiveState(&context, &reply_);
      v1::PutRequest request;
      request.mutable_begin()->set_job_id("gpt");
      request.mutable_begin()->set_wait_ms(wait_ms);
      v1::PutTensor* tensor = request.mutable_begin()->add_tensors();
      tensor->set_parameter(name_);
      tensor->set_array(v1::LIVE_STATE_ARRAY_PARAMETER);
      tensor->set_dtype(v1::DTYPE_BF16);
      tensor->add_shape(kNumel);
      stream->Write(request);
      std::string bytes(kNumel * 2, 0);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>('a' + i);
      request.mutable_piece()->set_offset_elements(0);
      request.mutable_piece()->set_data(bytes.substr(0, 14));
      stream->Write(request);
      if (whole) {
        request.mutable_piece()->set_offset_elements(7);
        request.mutable_piece()->set_data(bytes.substr(14));
        stream->Write(request);
        request.mutable_end();
        stream->Write(request);
        stream->WritesDone();
      }
      return FromGrpcStatus(stream->Finish());
    });
  }
  void OpenBoth() {
    ra_ = std::make_unique<Relay>(channel_, a_.get(), "a");
    rb_ = std::make_unique<Relay>(channel_, b_.get(), "b");
  }
  // Both workers have everything and were offered it.
  void TakeAll() {
    OpenBoth();
    Relay *const a = ra_.get(), *const b = rb_.get();
    const v1::PutStage stage = a->Ready();
    EXPECT_EQ(b->Ready().put(), stage.put());
    EXPECT_NE(stage.put(), 0);
    ASSERT_EQ(stage.slots_size(), 1);
    EXPECT_EQ(stage.slots(0).job_parameter(), 0);
    EXPECT_EQ(stage.slots(0).dtype(), v1::DTYPE_BF16);
    auto of_b = std::async(std::launch::async, [&] { return b->TakeUntilOffer(); });
    EXPECT_THAT(a->TakeUntilOffer(), testing::ElementsAre(std::pair(0, "abcdefghij")));
    EXPECT_THAT(of_b.get(), testing::ElementsAre(std::pair(5, "klmn"), std::pair(7, "opqrst")));
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<TestWorker> a_, b_;
  std::unique_ptr<Relay> ra_, rb_;
  std::string name_;
  v1::PutReply reply_;
};

TEST_F(PutServiceTest, IsCutAlongTheRanksSlicesAndSetOnceAllWorkersHaveIt) {
  Start();
  auto put = Put();
  TakeAll();
  ra_->Applied(9);
  rb_->Applied(9);
  EXPECT_OK(put.get());
  EXPECT_EQ(reply_.step(), 9);
  EXPECT_EQ(reply_.trained_step(), 8);
  EXPECT_EQ(reply_.num_tensors(), 1);
  EXPECT_EQ(reply_.size_bytes(), 2 * kNumel);
}

class PutBufferTest : public PutServiceTest {
 protected:
  // Changes a put of the buffer before it is sent.
  std::future<absl::Status> PutTable(const std::function<void(v1::PutBegin*)>& change = nullptr,
                                     const std::string& bytes = "abcdefgh") {
    v1::PutRequest request;
    request.mutable_begin()->set_job_id("gpt");
    v1::PutTensor* tensor = request.mutable_begin()->add_tensors();
    tensor->set_parameter("table");
    tensor->set_array(v1::LIVE_STATE_ARRAY_BUFFER);
    tensor->set_stored_dtype("I16");
    tensor->add_shape(4);
    if (change != nullptr) change(request.mutable_begin());
    return std::async(std::launch::async, [this, request, bytes]() mutable -> absl::Status {
      const auto stub = v1::LivePut::NewStub(NewChannel());
      grpc::ClientContext context;
      const auto stream = stub->PutLiveState(&context, &reply_);
      stream->Write(request);
      request.mutable_piece()->set_data(bytes);
      stream->Write(request);
      request.mutable_end();
      stream->Write(request);
      stream->WritesDone();
      return FromGrpcStatus(stream->Finish());
    });
  }
};

TEST_F(PutBufferTest, EachWorkerGetsAllOfItAsItIs) {
  Start();
  auto put = PutTable();
  OpenBoth();
  for (Relay* relay : {ra_.get(), rb_.get()}) {
    const v1::PutStage stage = relay->Ready();
    ASSERT_EQ(stage.slots_size(), 1);
    EXPECT_EQ(stage.slots(0).job_parameter(), 0);
    EXPECT_EQ(stage.slots(0).array(), v1::LIVE_STATE_ARRAY_BUFFER);
  }
  auto of_b = std::async(std::launch::async, [&] { return rb_->TakeUntilOffer(); });
  EXPECT_THAT(ra_->TakeUntilOffer(), testing::ElementsAre(std::pair(0, "abcdefgh")));
  EXPECT_THAT(of_b.get(), testing::ElementsAre(std::pair(0, "abcdefgh")));
  ra_->Applied(9);
  rb_->Applied(9);
  EXPECT_OK(put.get());
  EXPECT_EQ(reply_.num_tensors(), 1);
  EXPECT_EQ(reply_.size_bytes(), 8);
}

TEST_F(PutBufferTest, WhatDoesNotFitIsRefusedByName) {
  Start();
  const auto refusal = [&](const std::function<void(v1::PutTensor*)>& change) {
    return PutTable([&](v1::PutBegin* begin) { change(begin->mutable_tensors(0)); }).get();
  };
  EXPECT_THAT(refusal([](v1::PutTensor* tensor) { tensor->set_parameter("tables"); }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("buffer 'tables'")));
  EXPECT_THAT(refusal([&](v1::PutTensor* tensor) { tensor->set_parameter(name_); }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such buffer")));
  EXPECT_THAT(
      refusal([&](v1::PutTensor* tensor) { tensor->set_array(v1::LIVE_STATE_ARRAY_PARAMETER); }),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("parameter 'table'")));
  EXPECT_THAT(refusal([](v1::PutTensor* tensor) { tensor->set_stored_dtype("F16"); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("buffer 'table'"), HasSubstr("I16"), HasSubstr("F16"))));
  EXPECT_THAT(refusal([](v1::PutTensor* tensor) { tensor->add_shape(1); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("buffer 'table'"), HasSubstr("[4]"), HasSubstr("[4, 1]"))));
  EXPECT_THAT(refusal([](v1::PutTensor* tensor) { tensor->set_update_count(1); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("count of updates")));
  EXPECT_THAT(
      PutTable([](v1::PutBegin* begin) { *begin->add_tensors() = begin->tensors(0); }).get(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'table' occurs twice")));
}

TEST_F(PutServiceTest, OneWorkerThatHasItIsEnoughToKnowThatAllWill) {
  Start();
  auto put = Put();
  TakeAll();
  rb_.reset();  // It is silent, and has not learned of the decision.
  EXPECT_TRUE(ra_->Read().has_withdraw());
  ra_->Applied(9);
  EXPECT_OK(put.get());
  EXPECT_EQ(reply_.step(), 9);
}

TEST_F(PutServiceTest, WithoutAStepItIsWithdrawnFromAllAndTheClientIsToldWhetherThatWasInTime) {
  Start();
  auto put = Put(/*whole=*/true, /*wait_ms=*/1);
  TakeAll();
  EXPECT_TRUE(ra_->Read().has_withdraw());
  EXPECT_TRUE(rb_->Read().has_withdraw());
  ra_->Withdrawn();
  rb_->Withdrawn();
  EXPECT_THAT(put.get(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                  AllOf(HasSubstr("took no step within 1ms"),
                                        HasSubstr("nothing was changed"))));
  // Too late: a rank had voted already.
  put = Put(/*whole=*/true, /*wait_ms=*/1);
  TakeAll();
  EXPECT_TRUE(ra_->Read().has_withdraw());
  ra_->Withdrawn();
  rb_->Applied(9);
  EXPECT_OK(put.get());
}

TEST_F(PutServiceTest, WorkerThatSaysNothingMoreLeavesItUnknownAndItIsSaidSo) {
  Start();
  auto put = Put();
  TakeAll();
  rb_.reset();
  EXPECT_TRUE(ra_->Read().has_withdraw());
  ra_->Withdrawn();
  EXPECT_THAT(put.get(), StatusIs(absl::StatusCode::kUnavailable,
                                  AllOf(HasSubstr("worker 'b' ended its stream"),
                                        HasSubstr("all ranks have them, or none"))));
}

TEST_F(PutServiceTest, ErrorOfAWorkerIsTheClientsAndEndsTheOthersStreams) {
  Start();
  auto put = Put();
  OpenBoth();
  ra_->Ready();
  EXPECT_TRUE(rb_->Read().has_stage());
  rb_->Fail(absl::StatusCode::kResourceExhausted, "no room");
  EXPECT_THAT(put.get(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("worker 'b': no room"), HasSubstr("nothing was changed"))));
  EXPECT_THAT(ra_->Finish(), StatusIs(absl::StatusCode::kCancelled, testing::_));
  // Also after the offer: then the others are told to withdraw first.
  put = Put();
  TakeAll();
  rb_->Fail(absl::StatusCode::kDataLoss, "changed on disk");
  EXPECT_TRUE(ra_->Read().has_withdraw());
  ra_->Withdrawn();
  EXPECT_THAT(put.get(),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("worker 'b': changed on disk"),
                                                          HasSubstr("nothing was changed"))));
}

TEST_F(PutServiceTest, ClientThatSendsNothingForAWhileIsCutOff) {
  Start(absl::Milliseconds(200));
  auto put = Put(/*whole=*/false);
  OpenBoth();
  ra_->Ready();
  rb_->Ready();
  EXPECT_THAT(put.get(), StatusIs(absl::StatusCode::kCancelled, testing::_));
  EXPECT_FALSE(ra_->Finish().ok());
}

TEST_F(PutServiceTest, StreamThatNobodyWaitsForIsRefused) {
  Start();
  EXPECT_THAT(Relay(channel_, "a", "0123").Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody waits")));
  auto put = Put();
  const std::string session = a_->Await(Command::kStagePut).stage_put().session();
  EXPECT_THAT(Relay(channel_, "c", session).Finish(),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  Relay first(channel_, "a", session);
  first.Ready();
  EXPECT_THAT(Relay(channel_, "a", session).Finish(),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  Relay second(channel_, b_.get(), "b");
  second.Fail(absl::StatusCode::kUnavailable, "enough");
  EXPECT_THAT(put.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("enough")));
}

}  // namespace
}  // namespace tessera::coordinator
