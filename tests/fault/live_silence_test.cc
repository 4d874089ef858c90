// Clients whose coordinator or worker falls silent in the middle, as a machine does that loses its
// power: no connection is closed, and nothing is answered any more. They are told, and do not wait
// for ever.
#include <signal.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "client/cli/put_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/live_reader.h"
#include "tests/fault/live_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/stalling_proxy.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::StallingProxy;

class LiveSilenceTest : public LiveCluster {
 protected:
  // Soon; but a server that is only slow, on a busy machine, is not to be taken for a silent one.
  static constexpr Keepalive kFast = {absl::Seconds(2), absl::Seconds(10)};
  // What gRPC says where it was this side that gave up. The coordinator pings its clients, too, and
  // closes in the end, whatever the client does.
  static constexpr char kNoAnswer[] = "keepalive watchdog timeout";
};

// Takes everything, and does something at the first elements.
class FirstChunkSink : public LiveSink {
 public:
  explicit FirstChunkSink(std::function<void()> at_first) : at_first_(std::move(at_first)) {}
  absl::Status Begin(const LiveVersion&) override { return absl::OkStatus(); }
  absl::Status Entry(const LiveEntry&) override { return absl::OkStatus(); }
  absl::Status Chunk(int64_t, absl::string_view) override {
    if (const auto at_first = std::exchange(at_first_, nullptr); at_first != nullptr) at_first();
    return absl::OkStatus();
  }

 private:
  std::function<void()> at_first_;
};

TEST_F(LiveSilenceTest, ReaderOfAWorkerThatStopsInTheMiddleIsToldAndTheNextOneIsServed) {
  worker_timeout_ = absl::Seconds(2);
  ASSERT_NO_FATAL_FAILURE(StartJob(kManyElements));
  LiveReaderOptions options;
  options.coordinator_address = coordinator_address();
  options.keepalive = kFast;
  ASSERT_OK_AND_ASSIGN(const auto reader, LiveReader::Open(options));
  LiveQuery query;
  query.job_id = "toy";
  FirstChunkSink sink([this] { worker_->Kill(SIGSTOP); });
  EXPECT_THAT(reader->Get(query, &sink).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker 'w'")));
  worker_->Kill(SIGCONT);
  ASSERT_TRUE(Eventually([this] { return Job().state() == v1::JOB_STATE_RUNNING; }));
  ASSERT_NO_FATAL_FAILURE(Step());
  ExpectRead();
}

TEST_F(LiveSilenceTest, ReaderOfACoordinatorThatFallsSilentIsToldAndTheNextOneIsServed) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kManyElements));
  ASSERT_OK_AND_ASSIGN(const auto proxy,
                       StallingProxy::Start(port_, StallingProxy::Direction::kToClient, 1 << 20));
  LiveReaderOptions options;
  options.coordinator_address = proxy->address();
  options.through_coordinator = true;
  options.keepalive = kFast;
  ASSERT_OK_AND_ASSIGN(const auto reader, LiveReader::Open(options));
  LiveQuery query;
  query.job_id = "toy";
  FirstChunkSink sink(nullptr);
  EXPECT_THAT(reader->Get(query, &sink).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(proxy->address())));
  EXPECT_TRUE(proxy->has_stalled());
  ExpectRead();
}

TEST_F(LiveSilenceTest, PutToACoordinatorThatFallsSilentIsToldAndSetsNothing) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kManyElements));
  ASSERT_OK_AND_ASSIGN(const auto proxy,
                       StallingProxy::Start(port_, StallingProxy::Direction::kToServer, 1 << 20));
  cli::Endpoint endpoint;
  endpoint.address = proxy->address();
  endpoint.keepalive = kFast;
  ASSERT_OK_AND_ASSIGN(const auto client, cli::PutClient::Create(endpoint));
  v1::PutBegin begin;
  begin.set_job_id("toy");
  v1::PutTensor* tensor = begin.add_tensors();
  tensor->set_parameter("big.w");
  tensor->set_array(v1::LIVE_STATE_ARRAY_PARAMETER);
  tensor->set_dtype(v1::DTYPE_FP32);
  tensor->add_shape(kManyElements);
  const auto put = client->Put(begin, [](cli::PutClient::SendPiece send) {
    v1::LivePiece piece;
    constexpr int64_t kPieceElements = 1 << 18;
    piece.set_data(std::string(kPieceElements * sizeof(float), '\0'));
    for (int64_t at = 0; at < kManyElements; at += kPieceElements) {
      piece.set_offset_elements(at);
      if (!send(piece)) return absl::OkStatus();
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(put.status(), StatusIs(absl::StatusCode::kUnavailable,
                                     AllOf(HasSubstr(proxy->address()), HasSubstr(kNoAnswer))));
  EXPECT_TRUE(proxy->has_stalled());
  ASSERT_NO_FATAL_FAILURE(Step());
  ExpectRead();
  ExpectTrainersSee();
}

}  // namespace
}  // namespace tessera
