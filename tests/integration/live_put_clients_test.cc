// Clients that put values and send nonsense, hang, go away, or are too many; and what memory a put
// takes. Coordinator, worker and clients are of this process.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/grpc_status.h"
#include "proto/live_put.grpc.pb.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/freed_memory.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::DescriptorsOf;
using testing_support::Eventually;

constexpr int64_t kNumel = 1000;
constexpr int64_t kLargeNumel = 24 << 20;   // 96 MiB.
constexpr int64_t kPieceNumel = 128 << 10;  // 512 KiB.
constexpr int64_t kMostBytes = 64 << 20;

int64_t RssAnonBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    int64_t kib = 0;
    if (!absl::ConsumePrefix(&text, "RssAnon:") || !absl::ConsumeSuffix(&text, "kB")) continue;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &kib)) return kib << 10;
  }
  return 0;
}

// Descriptors of files without a name that this process has in /tmp.
int CountSpoolFiles() {
  int count = 0;
  for (const auto& [fd, what] : DescriptorsOf(getpid()))
    count += absl::StartsWith(what, "/tmp/#") && absl::EndsWith(what, "(deleted)") ? 1 : 0;
  return count;
}

// One that sends what it is told to.
class Client {
 public:
  explicit Client(const LocalCluster& cluster)
      : stub_(v1::LivePut::NewStub(*OpenChannel({cluster.coordinator_address()}, {}))),
        stream_(stub_->PutLiveState(&context_, &reply_)) {}
  ~Client() {
    if (!is_finished_) (void)Cancel();
  }

  static v1::PutTensor Tensor(int64_t numel) {
    v1::PutTensor tensor;
    tensor.set_parameter("w");
    tensor.set_array(v1::LIVE_STATE_ARRAY_PARAMETER);
    tensor.set_dtype(v1::DTYPE_FP32);
    tensor.add_shape(numel);
    return tensor;
  }
  bool Begin(const std::vector<v1::PutTensor>& tensors, int64_t wait_ms = 20'000) {
    v1::PutRequest request;
    request.mutable_begin()->set_job_id("big");
    request.mutable_begin()->set_wait_ms(wait_ms);
    for (const v1::PutTensor& tensor : tensors) *request.mutable_begin()->add_tensors() = tensor;
    return stream_->Write(request);
  }
  bool Piece(int64_t offset, int64_t numel, float value = 2.0f) {
    v1::PutRequest request;
    const std::vector<float> values(numel, value);
    request.mutable_piece()->set_offset_elements(offset);
    request.mutable_piece()->set_data(values.data(), values.size() * sizeof(float));
    return stream_->Write(request);
  }
  bool End() {
    v1::PutRequest request;
    request.mutable_end();
    return stream_->Write(request);
  }
  absl::Status Finish() {
    is_finished_ = true;
    stream_->WritesDone();
    return FromGrpcStatus(stream_->Finish());
  }
  absl::Status Cancel() {
    is_finished_ = true;
    context_.TryCancel();
    return FromGrpcStatus(stream_->Finish());
  }
  const v1::PutReply& reply() const { return reply_; }

 private:
  const std::unique_ptr<v1::LivePut::Stub> stub_;
  grpc::ClientContext context_;
  v1::PutReply reply_;
  std::unique_ptr<grpc::ClientWriter<v1::PutRequest>> stream_;
  bool is_finished_ = false;
};

class LivePutClientsTest : public testing::Test {
 protected:
  void Start(int64_t numel) {
    // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
    static const auto* const last = new grpc::CompletionQueue();
    ASSERT_NE(last, nullptr);
    numel_ = numel;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start({}));
    SessionOptions options;
    options.coordinator_address = cluster_->coordinator_address();
    options.worker_address = cluster_->worker_address();
    options.job_id = "big";
    options.config.world_size = 1;
    options.model = {{{"root", {{"w", {numel}, DType::kFp32}}}}};
    ASSERT_OK_AND_ASSIGN(session_, Session::Open(options));
    ASSERT_OK(session_->Initialize(
        [](int, int, absl::Span<float> values) { std::fill(values.begin(), values.end(), 1.0f); }));
  }
  // Nothing is updated by it.
  void Step() {
    ASSERT_OK(session_->RunStep([&] { return session_->Step().status(); }));
  }
  // The value that all elements have.
  float Value() {
    float first = 0, sum = 0;
    EXPECT_OK(session_->ReadParameters(0, [&](int, absl::Span<const float> values) {
      first = values[0];
      for (const float value : values) sum += value - first;
    }));
    EXPECT_EQ(sum, 0) << "a mixture";
    return first;
  }
  void ExpectNothingChanged() {
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Step());
    EXPECT_EQ(Value(), 1.0f);
  }
  // Once the job has no other put: the end of one that nobody waits for is awaited.
  std::unique_ptr<Client> BeginWhenThereIsNoOther(const std::vector<v1::PutTensor>& tensors) {
    while (true) {
      // Without its elements it is refused, but not for being the second one.
      Client probe(*cluster_);
      probe.Begin(tensors);
      probe.End();
      if (!absl::IsResourceExhausted(probe.Finish())) break;
    }
    auto client = std::make_unique<Client>(*cluster_);
    EXPECT_TRUE(client->Begin(tensors));
    return client;
  }
  // Takes steps until the client has its reply.
  absl::Status FinishWhileTraining(Client* client) {
    absl::Status status;
    std::atomic<bool> done{false};
    std::thread waiter([&] {
      status = client->Finish();
      done.store(true);
    });
    while (!done.load()) Step();
    waiter.join();
    return status;
  }

  int64_t numel_ = 0;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Session> session_;
};

TEST_F(LivePutClientsTest, WhatIsNoWholePutIsRefusedAndChangesNothing) {
  Start(kNumel);
  struct Wrong {
    std::vector<v1::PutTensor> tensors;
    std::vector<std::pair<int64_t, int64_t>> pieces;  // Offset and elements.
    bool has_end;
    absl::StatusCode code;
    const char* text;
  };
  const v1::PutTensor right = Client::Tensor(kNumel);
  v1::PutTensor integers = right, no_array = right, counted = right, moment = right,
                unknown = right;
  integers.set_dtype(v1::DTYPE_INT64);
  no_array.set_array(v1::LIVE_STATE_ARRAY_UNSPECIFIED);
  counted.set_update_count(3);
  moment.set_array(v1::LIVE_STATE_ARRAY_FIRST_MOMENT);
  unknown.set_parameter("v");
  v1::PutTensor half_of_moments = moment;
  half_of_moments.set_update_count(1);
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  const Wrong table[] = {
      {{}, {}, true, kInvalid, "number of tensors"},
      {{unknown}, {}, true, absl::StatusCode::kNotFound, "parameter 'v': the job has no such"},
      {{Client::Tensor(kNumel + 1)},
       {},
       true,
       kInvalid,
       "its shape is [1000], but the put has [1001]"},
      {{integers}, {}, true, kInvalid, "parameter 'w': elements of int64"},
      {{no_array}, {}, true, kInvalid, "the state has no array 0"},
      {{counted}, {}, true, kInvalid, "a count of updates belongs to each moment"},
      {{moment}, {}, true, kInvalid, "a count of updates belongs to each moment"},
      {{half_of_moments}, {}, true, kInvalid, "one of its two moments"},
      {{right, right}, {}, true, kInvalid, "tensor 'w' occurs twice"},
      {{right}, {}, true, kInvalid, "tensor 'w': it ends after 0 of 1000 elements"},
      {{right}, {{0, 999}}, true, kInvalid, "tensor 'w': it ends after 999 of 1000 elements"},
      {{right}, {{0, 1001}}, true, kInvalid, "where element 0 of 1000 comes next"},
      {{right}, {{1, 999}}, true, kInvalid, "at element 1, where element 0"},
      {{right}, {{0, 500}, {0, 500}}, true, kInvalid, "at element 0, where element 500"},
      {{right}, {{0, 1000}, {1000, 1}}, true, kInvalid, "more elements than"},
      {{right}, {{0, 0}}, true, kInvalid, "a piece of 0 bytes"},
      {{right}, {{0, 500}}, false, kInvalid, "ended the put too early"},
      {{right}, {{0, 1000}}, false, kInvalid, "ended the put too early"},
  };
  for (const Wrong& wrong : table) {
    SCOPED_TRACE(wrong.text);
    Client client(*cluster_);
    client.Begin(wrong.tensors);
    for (const auto& [offset, numel] : wrong.pieces) client.Piece(offset, numel);
    if (wrong.has_end) client.End();
    EXPECT_THAT(client.Finish(), StatusIs(wrong.code, HasSubstr(wrong.text)));
  }
  ExpectNothingChanged();
  Client client(*cluster_);
  client.Begin({right});
  client.Piece(0, 400);
  client.Piece(400, 600);
  client.End();
  ASSERT_OK(FinishWhileTraining(&client));
  EXPECT_EQ(client.reply().num_tensors(), 1);
  EXPECT_EQ(client.reply().size_bytes(), 4 * kNumel);
  EXPECT_EQ(Value(), 2.0f);
}

TEST_F(LivePutClientsTest, ClientThatHangsDisturbsNoStepAndOneThatGoesAwayChangesNothing) {
  Start(kNumel);
  {
    Client client(*cluster_);
    ASSERT_TRUE(client.Begin({Client::Tensor(kNumel)}));
    ASSERT_TRUE(client.Piece(0, 500));
    for (int i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(Step());
    // One job has one put at a time.
    absl::Status second;
    do {  // Until the first one's begin has arrived, this one's may be the first.
      Client other(*cluster_);
      other.Begin({Client::Tensor(kNumel)});
      other.End();
      second = other.Finish();
    } while (!absl::IsResourceExhausted(second));
    EXPECT_THAT(std::string(second.message()), HasSubstr("another client sets its values"));
    EXPECT_THAT(client.Cancel(), StatusIs(absl::StatusCode::kCancelled, testing::_));
  }
  EXPECT_TRUE(Eventually([] { return CountSpoolFiles() == 0; })) << "it left a file behind";
  auto next = BeginWhenThereIsNoOther({Client::Tensor(kNumel)});
  ExpectNothingChanged();
  ASSERT_TRUE(next->Piece(0, kNumel, 3.0f));
  ASSERT_TRUE(next->End());
  ASSERT_OK(FinishWhileTraining(next.get()));
  EXPECT_EQ(Value(), 3.0f);
}

// All of it has come, and nobody takes a step: then nobody will take what the client gave up.
TEST_F(LivePutClientsTest, WhatIsGivenUpBeforeAStepIsNotSetByALaterOne) {
  Start(kNumel);
  {
    Client client(*cluster_);
    ASSERT_TRUE(client.Begin({Client::Tensor(kNumel)}));
    ASSERT_TRUE(client.Piece(0, kNumel));
    ASSERT_TRUE(client.End());
    EXPECT_THAT(client.Cancel(), StatusIs(absl::StatusCode::kCancelled, testing::_));
  }
  while (true) {
    Client client(*cluster_);
    client.Begin({Client::Tensor(kNumel)}, /*wait_ms=*/1);
    client.Piece(0, kNumel);
    client.End();
    const absl::Status status = client.Finish();
    if (absl::IsResourceExhausted(status)) continue;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 AllOf(HasSubstr("took no step within 1ms"),
                                       HasSubstr("nothing was changed"))));
    break;
  }
  ExpectNothingChanged();
}

TEST_F(LivePutClientsTest, DeletedJobEndsItsPut) {
  Start(kNumel);
  Client client(*cluster_);
  ASSERT_TRUE(client.Begin({Client::Tensor(kNumel)}));
  ASSERT_TRUE(client.Piece(0, kNumel));
  ASSERT_TRUE(client.End());
  v1::DeleteJobRequest deletion;
  deletion.set_request_id("d1");
  deletion.set_job_id("big");
  ASSERT_OK(DeleteJob({cluster_->coordinator_address()}, deletion, absl::InfiniteFuture()));
  const absl::Status status = client.Finish();
  // It may have been deleted before the begin arrived.
  EXPECT_TRUE(absl::IsAborted(status) || absl::IsNotFound(status)) << status;
}

TEST_F(LivePutClientsTest, PutTakesLittleMemoryHoweverLargeItIs) {
  Start(kLargeNumel);
  const int64_t before_bytes = RssAnonBytes();
  int64_t most_bytes = before_bytes;
  Client client(*cluster_);
  ASSERT_TRUE(client.Begin({Client::Tensor(kLargeNumel)}));
  for (int64_t at = 0; at < kLargeNumel; at += kPieceNumel) {
    ASSERT_TRUE(client.Piece(at, kPieceNumel));
    most_bytes = std::max(most_bytes, RssAnonBytes());
  }
  ASSERT_TRUE(client.End());
  ASSERT_OK(FinishWhileTraining(&client));
  most_bytes = std::max(most_bytes, RssAnonBytes());
  // Of worker, coordinator and client together, windows of gRPC included.
  RecordProperty("grown_kib", static_cast<int>((most_bytes - before_bytes) >> 10));
  if (!testing_support::kKeepsFreedMemory) {
    EXPECT_LT(most_bytes - before_bytes, kMostBytes);
  }
  EXPECT_EQ(Value(), 2.0f);
}

}  // namespace
}  // namespace tessera
