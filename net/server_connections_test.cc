#include "net/server_connections.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "net/http2_by_hand.h"

namespace tessera {
namespace {

using http2::Connection;

// Has the calls that it is sent until it is told to end them.
class HoldingService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    absl::MutexLock lock(&mu_);
    ++num_begun_;
    auto* const call = new Call(this);
    if (holds_)
      held_.push_back(call);
    else
      call->Finish(grpc::Status::OK);
    return call;
  }
  // Waits until so many have begun, or more. Returns how many there are.
  int AwaitBegun(int count) const {
    const auto are_there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return num_begun_ >= count; };
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&are_there), absl::Seconds(20));
    return num_begun_;
  }
  // Those that it has now. Returns once they are gone.
  void EndHeld() {
    std::vector<Call*> held;
    int num_gone = 0;
    {
      absl::MutexLock lock(&mu_);
      held.swap(held_);
      num_gone = num_gone_ + static_cast<int>(held.size());
    }
    for (Call* call : held) call->Finish(grpc::Status::OK);
    const auto are_gone = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return num_gone_ >= num_gone; };
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&are_gone), absl::Seconds(20));
  }
  // Holds none from now on.
  void EndAll() {
    {
      absl::MutexLock lock(&mu_);
      holds_ = false;
    }
    EndHeld();
  }

 private:
  struct Call : grpc::ServerGenericBidiReactor {
    explicit Call(HoldingService* own) : service(own) {}
    void OnCancel() override {}
    void OnDone() override {
      absl::MutexLock lock(&service->mu_);
      ++service->num_gone_;
      delete this;
    }
    HoldingService* const service;
  };
  mutable absl::Mutex mu_;
  bool holds_ ABSL_GUARDED_BY(mu_) = true;
  int num_begun_ ABSL_GUARDED_BY(mu_) = 0;
  int num_gone_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Call*> held_ ABSL_GUARDED_BY(mu_);
};

class ServerConnectionsTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    ServerConnections::Limit(&builder, ServerConnections::Requests::kSmall);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // Tests ping all the time.
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void TearDown() override {
    service_.EndAll();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  // Of stream `first` and those after it.
  static std::string Begin(int num_calls, uint32_t first) {
    std::string bytes;
    for (int call = 0; call < num_calls; ++call)
      bytes += http2::CallHeaders(first + 2 * call, "/some.Service/Method");
    return bytes;
  }
  // On a new connection: begins that many calls at a time, and resets them once the service has
  // them, until one is refused. Returns how many the service got.
  int BeginAndResetAll(Connection* connection, int at_a_time) {
    int let_in = 0;
    EXPECT_FALSE(connection->Exchange(http2::Preface()).has_ended);  // Has told its settings.
    std::string begin = http2::Acknowledge();
    for (uint32_t stream = 1;; stream += 2 * at_a_time) {
      const Connection::Answer answer = connection->Exchange(begin + Begin(at_a_time, stream));
      EXPECT_FALSE(answer.has_ended);
      if (answer.has_ended) return let_in;
      const int more = at_a_time - answer.num_refused;
      num_begun_ += more;
      EXPECT_EQ(service_.AwaitBegun(num_begun_), num_begun_);
      let_in += more;
      if (more < at_a_time || testing::Test::HasFailure()) return let_in;
      begin.clear();
      for (int call = 0; call < at_a_time; ++call) begin += http2::Reset(stream + 2 * call);
    }
  }

  HoldingService service_;
  int num_begun_ = 0;  // As the tests know.
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ServerConnectionsTest, WhoAcknowledgesNothingBegins16Calls) {
  Connection connection(port_);
  EXPECT_FALSE(connection.Exchange(http2::Preface() + Begin(16, 1)).has_ended);
  EXPECT_TRUE(connection.Exchange(Begin(1, 33)).has_ended);
}

TEST_F(ServerConnectionsTest, ClientsOfGrpcAreToldTheLimitAndWaitWithMore) {
  const auto channel = *OpenChannel({absl::StrCat("127.0.0.1:", port_)}, {});
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  };
  std::vector<std::unique_ptr<Call>> calls;
  const grpc::Slice empty;
  for (int i = 0; i < 512; ++i) {
    calls.push_back(std::make_unique<Call>());
    calls[i]->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    calls[i]->reader = stub.PrepareUnaryCall(&calls[i]->context, "/some.Service/Method",
                                             grpc::ByteBuffer(&empty, 1), &queue);
    calls[i]->reader->StartCall();
    calls[i]->reader->Finish(&calls[i]->reply, &calls[i]->status, calls[i].get());
  }
  for (int begun = ServerConnections::kMaxCalls; begun <= 512;
       begun += ServerConnections::kMaxCalls) {
    ASSERT_EQ(service_.AwaitBegun(begun), begun);
    service_.EndHeld();
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    // That there is no reply; not that the call was refused.
    EXPECT_NE(static_cast<Call*>(tag)->status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << static_cast<Call*>(tag)->status.error_message();
  }
}

TEST_F(ServerConnectionsTest, ResetCallsOfOneConnectionTakeHalfOfThePlacesAndMoreAreRefused) {
  Connection connection(port_);
  EXPECT_EQ(BeginAndResetAll(&connection, 64), ServerConnections::kMaxEnded / 2);
}

TEST_F(ServerConnectionsTest, ConnectionEndsWhereMoreThan64CallsAreRefused) {
  Connection connection(port_);
  EXPECT_EQ(BeginAndResetAll(&connection, 64) % 64, 0);  // All of the last 64 were refused.
  EXPECT_TRUE(connection.Exchange(Begin(1, 10'001)).has_ended);
}

TEST_F(ServerConnectionsTest, EachConnectionHas16PlacesBesideThoseThatTakeAll) {
  std::vector<std::unique_ptr<Connection>> connections;
  // The first takes half of the places, the next one half of the rest.
  for (int i = 0; i < 10; ++i) {
    connections.push_back(std::make_unique<Connection>(port_));
    BeginAndResetAll(connections.back().get(), 64);
  }
  EXPECT_GE(num_begun_, ServerConnections::kMaxEnded - ServerConnections::kAlways);
  Connection connection(port_);
  EXPECT_EQ(BeginAndResetAll(&connection, 1), ServerConnections::kAlways);
}

TEST_F(ServerConnectionsTest, ARefusedConnectionIsLetInAgainOnceItsCallsAreDealtWith) {
  Connection connection(port_);
  BeginAndResetAll(&connection, 1);
  service_.EndAll();
  // gRPC frees the last of them a little later.
  uint32_t stream = 20'001;
  while (connection.Exchange(Begin(1, stream)).num_refused > 0) ASSERT_LT(stream += 2, 20'100);
  EXPECT_EQ(service_.AwaitBegun(num_begun_ + 1), num_begun_ + 1);
}

}  // namespace
}  // namespace tessera
