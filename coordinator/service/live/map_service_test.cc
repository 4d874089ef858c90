// The coordinator's part in mapping a job's state, over real gRPC. The test plays both workers and
// the client.
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "coordinator/service/live/live_service_fixture.h"
#include "coordinator/service/live/map_hub.h"
#include "job/map_session.h"
#include "proto/live_map.grpc.pb.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;
using Command = v1::CoordinatorCommand;

// A worker's stream of a session.
class MapStream {
 public:
  MapStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& worker,
            const std::string& session)
      : stub_(v1::LiveMapRelay::NewStub(channel)), stream_(stub_->Relay(&context_)) {
    v1::LiveMapEvent hello;
    hello.mutable_hello()->set_session(session);
    hello.mutable_hello()->set_worker_id(worker);
    stream_->Write(hello);
  }
  ~MapStream() {
    context_.TryCancel();
    if (!is_finished_) (void)stream_->Finish();
  }

  v1::LiveMapOffer Offer() {
    v1::LiveMapOffer offer;
    EXPECT_TRUE(stream_->Read(&offer));
    return offer;
  }
  void Offered(const std::string& path) {
    v1::LiveMapEvent event;
    event.mutable_offered()->set_descriptor_socket(path);
    EXPECT_TRUE(stream_->Write(event));
  }
  void Fail(absl::StatusCode code, const std::string& message) {
    v1::LiveMapEvent event;
    event.mutable_failure()->set_code(static_cast<int>(code));
    event.mutable_failure()->set_message(message);
    EXPECT_TRUE(stream_->Write(event));
  }
  // Waits until the coordinator ends it.
  absl::Status Finish() {
    v1::LiveMapOffer offer;
    while (stream_->Read(&offer)) continue;
    is_finished_ = true;
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::LiveMapRelay::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::LiveMapEvent, v1::LiveMapOffer>> stream_;
  bool is_finished_ = false;
};

class MapServiceTest : public LiveServiceTest {
 protected:
  // A client's call; reads up to `ready` on its own thread.
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<v1::LiveMap::Stub> stub;
    std::unique_ptr<grpc::ClientReaderWriter<v1::LiveStateQuery, v1::LiveMapReply>> stream;
    std::vector<v1::LiveTensorInfo> tensors;
    v1::LiveMapReady ready;
    std::future<bool> is_ready;

    absl::Status Finish() {
      v1::LiveMapReply reply;
      while (stream->Read(&reply))
        if (reply.has_ended()) stream->WritesDone();
      return FromGrpcStatus(stream->Finish());
    }
  };
  std::unique_ptr<Call> Map(const v1::LiveStateQuery& query = Query()) {
    auto call = std::make_unique<Call>();
    call->stub = v1::LiveMap::NewStub(channel_);
    call->stream = call->stub->MapLiveState(&call->context);
    call->is_ready = std::async(std::launch::async, [query, call = call.get()] {
      v1::LiveMapReply reply;
      if (!call->stream->Write(query)) return false;
      while (call->stream->Read(&reply)) {
        if (reply.has_tensor()) call->tensors.push_back(reply.tensor());
        if (reply.has_ready()) call->ready = reply.ready();
        if (reply.has_ready()) return true;
      }
      return false;
    });
    return call;
  }
  std::string SessionOf(TestWorker* worker) {
    return worker->Await(Command::kServeState).serve_state().session();
  }
  int64_t CommittedStep() {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_job_id("gpt");
    v1::Job job;
    EXPECT_OK(FromGrpcStatus(v1::Jobs::NewStub(channel_)->GetJob(&context, request, &job)));
    return job.committed_step();
  }
  // Brings both workers to where the client may map.
  std::unique_ptr<Call> MapBoth() {
    auto call = Map();
    const std::string session = SessionOf(a_.get());
    EXPECT_EQ(SessionOf(b_.get()), session);
    sa_ = std::make_unique<MapStream>(channel_, "a", session);
    sb_ = std::make_unique<MapStream>(channel_, "b", session);
    sa_->Offer();
    sb_->Offer();
    sa_->Offered("/a/d.sock");
    sb_->Offered("/b/d.sock");
    EXPECT_TRUE(call->is_ready.get());
    return call;
  }

  std::unique_ptr<MapStream> sa_, sb_;
};

TEST_F(MapServiceTest, ClientIsToldWhatThereIsAndWhereAndWorkersWhatToGiveUntilItEnds) {
  Start(100);
  v1::LiveStateQuery query = Query();
  query.set_moments(true);
  query.set_buffers(true);
  const auto call = Map(query);
  const std::string session = SessionOf(a_.get());
  EXPECT_EQ(SessionOf(b_.get()), session);
  EXPECT_TRUE(IsMapSession(session));
  EXPECT_GE(session.size(), 32u) << "it can be guessed";
  sa_ = std::make_unique<MapStream>(channel_, "a", session);
  sb_ = std::make_unique<MapStream>(channel_, "b", session);
  for (MapStream* stream : {sa_.get(), sb_.get()}) {
    const v1::LiveMapOffer offer = stream->Offer();
    EXPECT_THAT(offer.parameters(), testing::ElementsAre(0));
    EXPECT_TRUE(offer.moments());
    EXPECT_THAT(offer.buffers(), testing::ElementsAre(0));
  }
  sb_->Offered("/b/d.sock");
  sa_->Offered("/a/d.sock");
  ASSERT_TRUE(call->is_ready.get());
  ASSERT_EQ(call->tensors.size(), 4u);
  for (int tensor = 0; tensor < 3; ++tensor) {
    ASSERT_EQ(call->tensors[tensor].extents_size(), 2);
    EXPECT_EQ(call->tensors[tensor].extents(0).source(), 0);
    EXPECT_EQ(call->tensors[tensor].extents(1).source(), 1);
    EXPECT_EQ(call->tensors[tensor].extents(0).numel() + call->tensors[tensor].extents(1).numel(),
              100);
  }
  ASSERT_EQ(call->tensors[3].extents_size(), 1) << "of a buffer rank 0 has all";
  EXPECT_EQ(call->ready.size_bytes(), 3 * 400 + 6);
  ASSERT_EQ(call->ready.sources_size(), 2);
  EXPECT_EQ(call->ready.sources(0).worker_id(), "a");
  EXPECT_EQ(call->ready.sources(0).descriptor_socket(), "/a/d.sock");
  EXPECT_EQ(call->ready.sources(1).descriptor_socket(), "/b/d.sock");
  for (const v1::LiveMapSource& source : call->ready.sources())
    EXPECT_EQ(source.session(), session);
  call->stream->WritesDone();
  EXPECT_OK(call->Finish());
  (void)sa_->Finish();  // Their streams end, and with them what they give.
  (void)sb_->Finish();
}

TEST_F(MapServiceTest, ClientThatDiesEndsTheSessionsOfAllWorkers) {
  Start(100);
  const auto call = MapBoth();
  call->context.TryCancel();
  (void)sa_->Finish();
  (void)sb_->Finish();
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST_F(MapServiceTest, JobThatIsDeletedAndWorkerThatGoesEndTheCall) {
  Start(100);
  auto call = MapBoth();
  sa_.reset();
  EXPECT_THAT(call->Finish(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'a' is gone")));
  (void)sb_->Finish();
  call = MapBoth();
  DeleteJob();
  EXPECT_THAT(call->Finish(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("job 'gpt' was deleted meanwhile")));
  (void)sa_->Finish();
  (void)sb_->Finish();
}

class MapServiceMemoryTest : public MapServiceTest, public ::testing::WithParamInterface<bool> {};

TEST_P(MapServiceMemoryTest, WhereAPartIsGoneNobodyMapsTheRestAnyMore) {
  const bool has_stepped = GetParam();
  Start(100);
  v1::LiveStateQuery query = Query();
  query.set_buffers(true);
  query.add_include("root.mask");  // Only rank 0 has it.
  const auto call = Map(query);
  sa_ = std::make_unique<MapStream>(channel_, "a", SessionOf(a_.get()));
  sa_->Offer();
  sa_->Offered("/a/d.sock");
  ASSERT_TRUE(call->is_ready.get());
  ASSERT_EQ(call->ready.sources_size(), 1);
  if (has_stepped) {
    a_->ReportStep("gpt", 1, 0, 1);
    b_->ReportStep("gpt", 1, 1, 1);
    while (CommittedStep() != 1) absl::SleepFor(absl::Milliseconds(1));
  }
  (void)b_->Disconnect();
  TestWorker b(channel_, "b", 2);  // A life without shards, admitted once the other one is away.
  while (!b.Register(1).ok()) absl::SleepFor(absl::Milliseconds(1));
  b.Connect();
  // If no step was taken, the job begins again with the same generation.
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr(has_stepped ? "is lost" : "has not begun")));
  (void)sa_->Finish();
}

INSTANTIATE_TEST_SUITE_P(Steps, MapServiceMemoryTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Lost" : "Again"; });

TEST_F(MapServiceTest, ClientThatDoesNotEndItsSideIsCutOff) {
  Start(100, absl::Milliseconds(50));
  const auto call = MapBoth();
  DeleteJob();
  (void)sa_->Finish();
  (void)sb_->Finish();
  v1::LiveMapReply reply;
  ASSERT_TRUE(call->stream->Read(&reply));
  EXPECT_EQ(reply.ended().code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_FALSE(call->stream->Read(&reply));
  EXPECT_THAT(FromGrpcStatus(call->stream->Finish()),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST_F(MapServiceTest, WhatAWorkerRefusesIsTheClientsErrorByName) {
  Start(100);
  const auto call = Map();
  const std::string session = SessionOf(a_.get());
  EXPECT_EQ(SessionOf(b_.get()), session);
  sa_ = std::make_unique<MapStream>(channel_, "a", session);
  sb_ = std::make_unique<MapStream>(channel_, "b", session);
  sa_->Offer();
  sb_->Offer();
  sa_->Offered("/a/d.sock");
  sb_->Fail(absl::StatusCode::kFailedPrecondition, "its state is on a GPU");
  EXPECT_FALSE(call->is_ready.get());
  EXPECT_THAT(call->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'b'")));
  (void)sa_->Finish();
}

TEST_F(MapServiceTest, StreamsOfNoSessionAndQueriesOfNoUseAreRefused) {
  Start(100);
  EXPECT_THAT(MapStream(channel_, "a", "map-0").Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody waits")));
  const auto expect_refused = [&](const v1::LiveStateQuery& query, absl::StatusCode code,
                                  const std::string& why) {
    const auto call = Map(query);
    EXPECT_FALSE(call->is_ready.get());
    EXPECT_THAT(call->Finish(), StatusIs(code, HasSubstr(why)));
  };
  v1::LiveStateQuery query = Query();
  query.set_dtype(v1::DTYPE_BF16);
  expect_refused(query, absl::StatusCode::kFailedPrecondition, "not mapped");
  query.set_dtype(v1::DTYPE_FP64);
  expect_refused(query, absl::StatusCode::kInvalidArgument, "cannot be read as");
  query = Query();
  query.set_form(v1::LIVE_STATE_FORM_SHARDED);
  expect_refused(query, absl::StatusCode::kFailedPrecondition, "a rank's part");
  query = Query();
  query.set_job_id("other");
  expect_refused(query, absl::StatusCode::kNotFound, "other");
  query = Query();
  query.add_include("x");
  expect_refused(query, absl::StatusCode::kNotFound, "no parameter's name");
}

TEST(MapHubTest, OfAJobAsManyAreLetInAsMayAndTheNextOneOnceOneLeaves) {
  MapHub hub;
  const auto never = [] { return false; };
  const JobId job("gpt");
  for (int i = 0; i < MapHub::kMaxMapsOfAJob; ++i)
    ASSERT_OK(hub.Enter(job, absl::InfinitePast(), never));
  EXPECT_THAT(hub.Enter(job, absl::InfinitePast(), never),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("'gpt'")));
  EXPECT_THAT(hub.Enter(job, absl::InfiniteFuture(), [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  EXPECT_OK(hub.Enter(JobId("other"), absl::InfinitePast(), never));
  std::future<absl::Status> next =
      std::async(std::launch::async, [&] { return hub.Enter(job, absl::InfiniteFuture(), never); });
  hub.Leave(job);
  EXPECT_OK(next.get());
}

}  // namespace
}  // namespace tessera::coordinator
