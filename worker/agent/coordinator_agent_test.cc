// The agent against a Membership service in this process, which can end streams and go away.
#include "worker/agent/coordinator_agent.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"

namespace tessera {
namespace {

using testing::ElementsAre;

constexpr absl::Duration kDeadline = absl::Seconds(20);

// Keeps what it hears. One stream at a time.
class Coordinator final : public v1::Membership::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorCommand, v1::WorkerEvent>;

  explicit Coordinator(std::string address) : address_(std::move(address)) { Start(); }
  ~Coordinator() override { Stop(); }

  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    // As the coordinator has it.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  // Ends the process, for all that the agent sees.
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  // Registrations get no answer.
  void HoldRegistrations() {
    absl::MutexLock lock(&mu_);
    hold_registrations_ = true;
  }
  // From now on it is another cluster's.
  void Become(const std::string& cluster) {
    absl::MutexLock lock(&mu_);
    cluster_ = cluster;
  }
  // Streams are open but nothing of them is read.
  void HoldReading(bool hold) {
    absl::MutexLock lock(&mu_);
    hold_reading_ = hold;
  }
  void AwaitRegistration() { AwaitRegistrations(1); }
  void AwaitRegistrations(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto came = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return registrations_.size() >= count;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kDeadline));
  }
  // Waits for the end of a stream, however it ends.
  void AwaitStreamEnd() {
    absl::MutexLock lock(&mu_);
    const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stream_ == nullptr; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&ended), kDeadline));
  }
  void EndStream() {
    absl::MutexLock lock(&mu_);
    if (context_ != nullptr) context_->TryCancel();
  }
  void Command(const std::string& job_id) {
    v1::CoordinatorCommand command;
    command.mutable_drop()->set_job_id(job_id);
    absl::MutexLock lock(&mu_);
    command.set_cluster_id(cluster_);
    EXPECT_TRUE(stream_->Write(command));
  }
  // Waits until the events of the `number`-th stream satisfy `done`; the events so far.
  std::vector<v1::WorkerEvent> Await(
      int number, const std::function<bool(const std::vector<v1::WorkerEvent>&)>& done) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return num_streams_ == number && done(events_);
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kDeadline));
    return events_;
  }
  int num_streams() {
    absl::MutexLock lock(&mu_);
    return num_streams_;
  }
  std::vector<v1::RegisterWorkerRequest> registrations() {
    absl::MutexLock lock(&mu_);
    return registrations_;
  }

  grpc::Status RegisterWorker(grpc::ServerContext* context,
                              const v1::RegisterWorkerRequest* request,
                              v1::RegisterWorkerResponse* response) override {
    absl::MutexLock lock(&mu_);
    registrations_.push_back(*request);
    response->set_heartbeat_interval_ms(20);
    response->set_cluster_id(cluster_);
    response->set_incarnation(request->incarnation() == 0 ? 17 : request->incarnation());
    while (hold_registrations_ && !context->IsCancelled()) {
      const auto released = [this]()
                                ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !hold_registrations_; };
      mu_.AwaitWithTimeout(absl::Condition(&released), absl::Milliseconds(5));
    }
    return grpc::Status::OK;
  }
  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override {
    {
      absl::MutexLock lock(&mu_);
      ++num_streams_;
      context_ = context;
      stream_ = stream;
      events_.clear();
    }
    {
      absl::MutexLock lock(&mu_);
      const auto may_read = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !hold_reading_; };
      mu_.AwaitWithTimeout(absl::Condition(&may_read), kDeadline);
    }
    v1::WorkerEvent event;
    while (stream->Read(&event)) {
      absl::MutexLock lock(&mu_);
      if (context_ == context) events_.push_back(event);
    }
    absl::MutexLock lock(&mu_);
    if (context_ == context) {
      stream_ = nullptr;
      context_ = nullptr;
    }
    return grpc::Status::CANCELLED;
  }

 private:
  const std::string address_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  bool hold_reading_ ABSL_GUARDED_BY(mu_) = false;
  bool hold_registrations_ ABSL_GUARDED_BY(mu_) = false;
  int num_streams_ ABSL_GUARDED_BY(mu_) = 0;
  std::string cluster_ ABSL_GUARDED_BY(mu_) = "c1";
  grpc::ServerContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  Stream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::vector<v1::WorkerEvent> events_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::RegisterWorkerRequest> registrations_ ABSL_GUARDED_BY(mu_);
};

v1::WorkerEvent FailureOf(const std::string& job_id) {
  v1::WorkerEvent event;
  event.mutable_failure()->set_job_id(job_id);
  return event;
}

int NumHeartbeats(const std::vector<v1::WorkerEvent>& events) {
  int count = 0;
  for (const v1::WorkerEvent& event : events) count += event.has_heartbeat();
  return count;
}

bool HasFailureOf(const std::vector<v1::WorkerEvent>& events, const std::string& job_id) {
  for (const v1::WorkerEvent& event : events) {
    if (event.failure().job_id() == job_id) return true;
  }
  return false;
}

class CoordinatorAgentTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-agent-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    address_ = "unix:" + folder_ + "/c.sock";
    CoordinatorAgent::Options options;
    options.coordinator.address = address_;
    options.worker_id = "w";
    options.key = "the key of this life";
    options.num_devices = 3;
    options.worker_address = "unix:/w.sock";
    options.on_command = [this](const v1::CoordinatorCommand& command) {
      absl::MutexLock lock(&mu_);
      commands_.push_back(command.drop().job_id());
    };
    options.on_connected = [this] {
      return std::vector<v1::WorkerEvent>{FailureOf(absl::StrCat("missed ", ++num_connections_))};
    };
    options.heartbeat = [] { return v1::Heartbeat(); };
    options.holds_jobs = [this] { return holds_jobs_.load(); };
    agent_ = std::make_unique<CoordinatorAgent>(std::move(options));
  }
  void TearDown() override {
    agent_.reset();
    coordinator_.reset();
    unlink((folder_ + "/c.sock").c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0);
  }
  // Until the agent knows its stream, what it is given is dropped: the stream begins with all that
  // was missed.
  void AwaitConnection() {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (num_connections_ == 0 && absl::Now() < deadline) sched_yield();
    ASSERT_GT(num_connections_, 0);
  }
  void StartBoth() {
    coordinator_ = std::make_unique<Coordinator>(address_);
    ASSERT_OK(agent_->Start());
    coordinator_->Await(1, [](const auto& events) { return !events.empty(); });
  }
  std::vector<std::string> AwaitCommands(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return commands_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), kDeadline));
    return commands_;
  }

  std::string folder_, address_;
  std::atomic<int> num_connections_ = 0;
  std::atomic<bool> holds_jobs_ = false;
  absl::Mutex mu_;
  std::vector<std::string> commands_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorAgent> agent_;
};

TEST_F(CoordinatorAgentTest, RegistersThenSendsWhatWasMissedThenHeartbeats) {
  StartBoth();
  const auto events = coordinator_->Await(1, [](const auto& e) { return NumHeartbeats(e) >= 3; });
  EXPECT_EQ(events[0].failure().job_id(), "missed 1") << "first of all";
  for (const v1::WorkerEvent& event : events) {
    EXPECT_EQ(event.worker_id(), "w");
    EXPECT_EQ(event.incarnation(), 17);
  }
  EXPECT_EQ(events[0].key(), "the key of this life");
  const auto registrations = coordinator_->registrations();
  ASSERT_EQ(registrations.size(), 1);
  EXPECT_EQ(registrations[0].worker_id(), "w");
  EXPECT_EQ(registrations[0].incarnation(), 0) << "it has none yet";
  EXPECT_EQ(registrations[0].key(), "the key of this life");
  EXPECT_EQ(agent_->incarnation(), 17);
  EXPECT_EQ(registrations[0].num_devices(), 3);
  EXPECT_EQ(registrations[0].address(), "unix:/w.sock");
  EXPECT_TRUE(agent_->connected());
}

TEST_F(CoordinatorAgentTest, EventsAndCommandsArriveInOrder) {
  StartBoth();
  for (int i = 0; i < 20; ++i) {
    agent_->Send(FailureOf(absl::StrCat("event ", i)));
    coordinator_->Command(absl::StrCat("command ", i));
  }
  const auto events =
      coordinator_->Await(1, [](const auto& e) { return HasFailureOf(e, "event 19"); });
  int next = 0;
  for (const v1::WorkerEvent& event : events) {
    if (event.failure().job_id() == absl::StrCat("event ", next)) ++next;
  }
  EXPECT_EQ(next, 20);
  const std::vector<std::string> commands = AwaitCommands(20);
  ASSERT_EQ(commands.size(), 20);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(commands[i], absl::StrCat("command ", i));
}

TEST_F(CoordinatorAgentTest, WorkerThatHoldsJobsObeysItsOwnClusterAlone) {
  holds_jobs_ = true;
  StartBoth();
  coordinator_->Command("of its own");
  ASSERT_THAT(AwaitCommands(1), ElementsAre("of its own"));
  EXPECT_EQ(agent_->cluster(), "c1");

  coordinator_->Become("c2");
  coordinator_->Command("of another one");  // Ends the stream that was open.
  coordinator_->AwaitStreamEnd();
  coordinator_->AwaitRegistrations(4);  // It keeps asking, and opens no stream.
  EXPECT_EQ(coordinator_->num_streams(), 1);
  EXPECT_EQ(coordinator_->registrations().back().cluster_id(), "c1");

  coordinator_->Become("c1");
  coordinator_->Await(2, [](const auto& e) { return !e.empty(); });
  coordinator_->Command("of its own again");
  EXPECT_THAT(AwaitCommands(2), ElementsAre("of its own", "of its own again"));
}

TEST_F(CoordinatorAgentTest, WorkerThatHoldsNothingJoinsWhicheverClusterItIs) {
  StartBoth();
  EXPECT_EQ(coordinator_->registrations()[0].cluster_id(), "");
  coordinator_->Become("c2");
  coordinator_->EndStream();
  coordinator_->Await(2, [](const auto& e) { return !e.empty(); });
  EXPECT_EQ(agent_->cluster(), "c2");
}

TEST_F(CoordinatorAgentTest, BrokenStreamIsMadeAgainAndBeginsWithWhatWasMissed) {
  StartBoth();
  for (int stream = 2; stream <= 4; ++stream) {
    coordinator_->EndStream();
    const auto events =
        coordinator_->Await(stream, [](const auto& e) { return NumHeartbeats(e) >= 1; });
    EXPECT_EQ(events[0].failure().job_id(), absl::StrCat("missed ", stream));
  }
  EXPECT_EQ(coordinator_->registrations().size(), 4) << "each begins with a registration";
}

TEST_F(CoordinatorAgentTest, CoordinatorThatWasAwayIsFoundAgain) {
  ASSERT_OK(agent_->Start());  // Before there is one.
  agent_->Send(FailureOf("nobody hears this"));
  EXPECT_FALSE(agent_->connected());
  coordinator_ = std::make_unique<Coordinator>(address_);
  coordinator_->Await(1, [](const auto& e) { return NumHeartbeats(e) >= 1; });
  coordinator_->Stop();
  agent_->Send(FailureOf("nor this"));  // Never blocks.
  coordinator_->Start();
  const auto events = coordinator_->Await(2, [](const auto& e) { return NumHeartbeats(e) >= 1; });
  EXPECT_EQ(events[0].failure().job_id(), "missed 2");
  EXPECT_FALSE(HasFailureOf(events, "nor this")) << "what was missed covers it";
}

TEST_F(CoordinatorAgentTest, StopEndsTheStreamAndAllCallbacksAlsoWithoutACoordinator) {
  StartBoth();
  agent_->Stop();
  EXPECT_FALSE(agent_->connected());
  const int connections = num_connections_;
  coordinator_->Stop();
  coordinator_->Start();
  EXPECT_EQ(num_connections_, connections);
  agent_->Stop();  // A second time.
}

TEST_F(CoordinatorAgentTest, StopDoesNotWaitForARegistrationThatGetsNoAnswer) {
  coordinator_ = std::make_unique<Coordinator>(address_);
  coordinator_->HoldRegistrations();
  ASSERT_OK(agent_->Start());
  coordinator_->AwaitRegistration();
  const absl::Time begin = absl::Now();
  agent_->Stop();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2)) << "its deadline is 5 s";
}

TEST_F(CoordinatorAgentTest, WhatWaitsForACoordinatorThatReadsNothingIsBounded) {
  // So large that what the stream itself takes in is few of them.
  const std::string job_id(8 << 10, 'j');
  coordinator_ = std::make_unique<Coordinator>(address_);
  coordinator_->HoldReading(true);
  ASSERT_OK(agent_->Start());
  AwaitConnection();
  constexpr int kSteps = 5000;
  for (int step = 1; step <= kSteps; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      v1::WorkerEvent event;
      event.mutable_step()->set_job_id(job_id);
      event.mutable_step()->set_epoch(1);
      event.mutable_step()->set_rank(rank);
      event.mutable_step()->set_step(step);
      agent_->Send(event);
    }
  }
  agent_->Send(FailureOf("last"));
  coordinator_->HoldReading(false);
  const auto events = coordinator_->Await(1, [](const auto& e) { return HasFailureOf(e, "last"); });
  int64_t newest[2] = {0, 0}, reports = 0;
  for (const v1::WorkerEvent& event : events) {
    if (!event.has_step()) continue;
    ++reports;
    EXPECT_GT(event.step().step(), newest[event.step().rank()]) << "in their order";
    newest[event.step().rank()] = event.step().step();
  }
  EXPECT_LE(reports, 3 * 1024) << "1,024 that wait, 1,024 being written, and what the stream holds";
  EXPECT_EQ(newest[0], kSteps);
  EXPECT_EQ(newest[1], kSteps);
}

}  // namespace
}  // namespace tessera
