// Which clients may fetch from a worker, and the wire form of a piece. What is fetched:
// tests/integration/live_state_test.cc.
#include "worker/service/state_listener.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/address.h"
#include "net/credentials.h"
#include "net/http2_by_hand.h"
#include "net/test_certificates.h"
#include "proto/grpc_status.h"
#include "proto/live_state.grpc.pb.h"
#include "worker/service/live_fetch_service.h"

namespace tessera {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

constexpr char kFetch[] = "/tessera.v1.LiveFetch/Fetch";

ptrdiff_t NumThreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

absl::Status Fetch(const std::string& address, const TlsFiles& tls) {
  auto channel = OpenChannel({address, tls}, grpc::ChannelArguments());
  if (!channel.ok()) return channel.status();
  grpc::ClientContext context;
  const auto stub = v1::LiveFetch::NewStub(*channel);
  v1::LiveFetchRequest request;
  request.set_session("0123");
  const auto reader = stub->Fetch(&context, request);
  v1::LivePiece piece;
  EXPECT_FALSE(reader->Read(&piece));
  return FromGrpcStatus(reader->Finish());
}

TEST(StateListenerTest, SessionThatNobodyOpenedIsRefused) {
  LiveSources sources;
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       StateListener::Start("127.0.0.1:0", {}, false, &sources));
  EXPECT_THAT(Fetch(listener->address(), {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("session")));
  const auto source = std::make_shared<LiveSource>(nullptr);
  ASSERT_TRUE(source->Enter([] {}));
  sources.Add("0123", source);
  EXPECT_THAT(Fetch(listener->address(), {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("session")));
}

TEST(StateListenerTest, OnlyClientsOfTheAuthorityGetInWhereThereIsOne) {
  auto certificates = TestCertificates::Make();
  if (absl::IsNotFound(certificates.status())) GTEST_SKIP() << certificates.status().message();
  ASSERT_OK(certificates);
  LiveSources sources;
  ASSERT_OK_AND_ASSIGN(
      const auto listener,
      StateListener::Start("127.0.0.1:0", (*certificates)->server(), false, &sources));
  EXPECT_THAT(Fetch(listener->address(), (*certificates)->client()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("session")));
  EXPECT_THAT(Fetch(listener->address(), (*certificates)->stranger()),
              StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(Fetch(listener->address(), {}), StatusIs(absl::StatusCode::kUnavailable, _));
  TlsFiles mixed = (*certificates)->server();
  mixed.key_path = (*certificates)->client().key_path;
  EXPECT_THAT(StateListener::Start("127.0.0.1:0", mixed, false, &sources).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(mixed.key_path)));
}

TEST(StateListenerTest, AddressThatClientsCannotBeToldOrReachUnprotectedIsRefused) {
  LiveSources sources;
  for (const char* address : {"0.0.0.0:0", "[::]:0", "unix:/tmp/s"}) {
    EXPECT_THAT(StateListener::Start(address, {}, true, &sources).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(address)));
  }
  EXPECT_THAT(StateListener::Start("nowhere", {}, true, &sources).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nowhere")));
  EXPECT_THAT(StateListener::Start("10.0.0.1:0", {}, false, &sources).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("10.0.0.1")));
  ASSERT_OK_AND_ASSIGN(const auto first, StateListener::Start("127.0.0.1:0", {}, false, &sources));
  EXPECT_THAT(StateListener::Start(first->address(), {}, false, &sources).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(first->address())));
}

TEST(StateListenerTest, ConnectionThatAcknowledgesNothingAndBegins17CallsEnds) {
  LiveSources sources;
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       StateListener::Start("127.0.0.1:0", {}, false, &sources));
  ASSERT_OK_AND_ASSIGN(const ServerAddress address, ParseServerAddress(listener->address()));
  const http2::Connection connection(address.port);
  std::string begin = http2::Preface();
  for (int call = 0; call < 16; ++call) begin += http2::CallHeaders(2 * call + 1, kFetch);
  EXPECT_FALSE(connection.Exchange(begin).has_ended);
  EXPECT_TRUE(connection.Exchange(http2::CallHeaders(33, kFetch)).has_ended);
}

TEST(StateListenerTest, ConnectionThatAnnouncesMoreThanARequestCanHaveEndsAtOnce) {
  LiveSources sources;
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       StateListener::Start("127.0.0.1:0", {}, false, &sources));
  ASSERT_OK_AND_ASSIGN(const ServerAddress address, ParseServerAddress(listener->address()));
  const http2::Connection modest(address.port), greedy(address.port);
  ASSERT_FALSE(modest.Exchange(http2::Preface()).has_ended);
  ASSERT_FALSE(greedy.Exchange(http2::Preface()).has_ended);
  EXPECT_FALSE(modest.Exchange(http2::BeginCall(1, kFetch, 4 << 10, "part")).has_ended);
  EXPECT_TRUE(greedy.Exchange(http2::BeginCall(1, kFetch, 4 << 20, "part")).has_ended);
  EXPECT_FALSE(modest.Exchange(http2::BeginCall(3, kFetch, 4 << 10, "part")).has_ended);
}

// With a server that gives each call a thread they took hundreds.
TEST(StateListenerTest, ClientsThatEndTheirConnectionsWithinCallsTakeNoThreads) {
  LiveSources sources;
  ASSERT_OK_AND_ASSIGN(const auto listener,
                       StateListener::Start("127.0.0.1:0", {}, false, &sources));
  ASSERT_OK_AND_ASSIGN(const ServerAddress address, ParseServerAddress(listener->address()));
  ASSERT_THAT(Fetch(listener->address(), {}), StatusIs(absl::StatusCode::kNotFound, _));
  const ptrdiff_t threads_before = NumThreads();
  std::string bytes = http2::Preface() + http2::Acknowledge();
  for (int call = 0; call < 60; ++call)
    bytes += http2::BeginCall(2 * call + 1, kFetch, 4 << 10, std::string(4000, 'j'));
  ptrdiff_t most_threads = 0;
  for (int round = 0; round < 200; ++round) {
    EXPECT_TRUE(http2::Connection(address.port).Send(bytes));
    most_threads = std::max(most_threads, NumThreads());
  }
  // gRPC has a few of its own.
  EXPECT_LT(most_threads, threads_before + 20);
}

TEST(EncodeLivePieceTest, IsThatOfProtocolBuffersToTheByte) {
  for (const int64_t offset : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{1} << 40}) {
    for (const size_t size : {size_t{1}, size_t{127}, size_t{128}, size_t{1} << 20}) {
      const std::string data(size, 'x');
      v1::LivePiece piece;
      piece.set_offset_elements(offset);
      piece.set_data(data);
      grpc::Slice whole;
      ASSERT_TRUE(EncodeLivePiece(offset, grpc::Slice(data)).DumpToSingleSlice(&whole).ok());
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(whole.begin()), whole.size()),
                piece.SerializeAsString());
    }
  }
}

}  // namespace
}  // namespace tessera
