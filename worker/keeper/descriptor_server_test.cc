// The descriptor socket over a keeper that hosts a real job, with executors as threads. The test
// is the coordinator.
#include "worker/keeper/descriptor_server.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/no_more_threads.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "layout/layout_digest.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
#include "worker/keeper/direct_maps.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(20);

class DescriptorServerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-descr-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    auto server = DescriptorServer::Start(folder_ + "/d.sock", &keeper_);
    ASSERT_OK(server);
    server_ = *std::move(server);
    model_.units = {{"u", {{"w", {64}, DType::kFp32}}}};
    StartEpoch(1);
  }
  void TearDown() override {
    server_.reset();
    keeper_.Shutdown();
    EXPECT_EQ(rmdir(folder_.c_str()), 0) << "the socket is removed";
  }

  void Emit(const v1::WorkerEvent& event) {
    absl::MutexLock lock(&mu_);
    events_.push_back(event);
  }
  // Waits for an event of this kind, and forgets all before it.
  v1::WorkerEvent Await(v1::WorkerEvent::EventCase kind) {
    v1::WorkerEvent found;
    absl::MutexLock lock(&mu_);
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      while (!events_.empty() && !found.has_prepared() && !found.has_failure()) {
        if (events_.front().event_case() == kind) found = events_.front();
        events_.erase(events_.begin());
      }
      return found.event_case() == kind;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kDeadline));
    return found;
  }
  bool HasFailed() {
    absl::MutexLock lock(&mu_);
    for (const v1::WorkerEvent& event : events_) {
      if (event.has_failure()) return true;
    }
    return false;
  }
  // As the coordinator does: prepares the epoch, waits, starts it.
  void StartEpoch(int64_t epoch) {
    v1::CoordinatorCommand command;
    v1::Job* job = command.mutable_prepare()->mutable_job();
    job->set_job_id("toy");
    job->set_epoch(epoch);
    *job->mutable_model() = EncodeModel(model_);
    *job->mutable_config() = EncodeJobConfig(JobConfig());
    v1::RankPlacement* placement = job->add_placements();
    placement->set_worker_id("w");
    keeper_.HandleCommand(command);
    EXPECT_EQ(Await(v1::WorkerEvent::kPrepared).prepared().epoch(), epoch);
    command.mutable_start()->set_job_id("toy");
    command.mutable_start()->set_epoch(epoch);
    keeper_.HandleCommand(command);
  }
  std::string AttachText(bool hosts_executor = false) {
    v1::LocalRequest request;
    v1::AttachRequest* attach = request.mutable_attach();
    attach->set_job_id("toy");
    attach->set_world_size(1);
    const auto layout = ModelLayout::Create(model_, JobConfig().layout, 1);
    EXPECT_OK(layout.status());
    attach->set_layout_digest(LayoutDigest(*layout));
    attach->set_hosts_executor(hosts_executor);
    return EncodeRequest(request);
  }
  // Connects and asks.
  absl::StatusOr<Packet> Ask(const std::string& text, UniqueFd* socket) {
    ASSIGN_OR_RETURN(*socket, ConnectPacketSocket(server_->path()));
    RETURN_IF_ERROR(SendPacket(socket->get(), text));
    return ReceivePacket(socket->get());
  }
  struct Attached {
    v1::AttachResponse response;
    std::vector<UniqueFd> fds;
  };
  absl::StatusOr<Attached> Attach(UniqueFd* socket, bool hosts_executor = false) {
    ASSIGN_OR_RETURN(Packet packet, Ask(AttachText(hosts_executor), socket));
    ASSIGN_OR_RETURN(const v1::LocalReply reply, ParseReply(packet.bytes));
    EXPECT_TRUE(reply.has_attached());
    return Attached{reply.attached(), std::move(packet.fds)};
  }
  absl::Status TryAttach() {
    UniqueFd socket;
    return Attach(&socket).status();
  }
  // The rank is free once the server has seen the end of the last trainer's socket.
  int64_t AttachOnceFree(UniqueFd* socket) {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (absl::Now() < deadline) {
      if (const auto attached = Attach(socket); attached.ok())
        return attached->response.attachment();
      absl::SleepFor(absl::Milliseconds(1));
    }
    ADD_FAILURE() << "the rank is never free";
    return 0;
  }
  static std::string DetachText() {
    v1::LocalRequest request;
    request.mutable_detach();
    return EncodeRequest(request);
  }

  std::string folder_;
  ModelSpec model_;
  absl::Mutex mu_;
  std::vector<v1::WorkerEvent> events_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<ExecutorLauncher> launcher_ = NewThreadLauncher();
  Keeper keeper_{"w", "", launcher_.get(), [this](const v1::WorkerEvent& event) { Emit(event); }};
  std::unique_ptr<DescriptorServer> server_;
};

std::string NameOf(const UniqueFd& fd) {
  char name[256] = {};
  const std::string link = absl::StrCat("/proc/self/fd/", fd.get());
  return readlink(link.c_str(), name, sizeof(name) - 1) > 0 ? name : "";
}

size_t NumDescriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + kDeadline;
  while (!holds()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

TEST_F(DescriptorServerTest, TrainerGetsItsRanksDescriptorsAndNobodyElseThen) {
  UniqueFd socket, second;
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(&socket));
  EXPECT_EQ(attached.response.epoch(), 1);
  ASSERT_EQ(attached.fds.size(), 3);
  EXPECT_THAT(NameOf(attached.fds[0]), HasSubstr("toy/parameters"));
  EXPECT_THAT(NameOf(attached.fds[1]), HasSubstr("toy/0/gradients"));
  EXPECT_THAT(NameOf(attached.fds[2]), HasSubstr("toy/0/control"));
  ASSERT_OK_AND_ASSIGN(const Packet refused, Ask(AttachText(), &second));
  EXPECT_THAT(ParseReply(refused.bytes).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("attachment 1")));
  EXPECT_TRUE(refused.fds.empty());
}

TEST_F(DescriptorServerTest, TrainerThatHostsItsExecutorGetsThatOnesSocketToo) {
  UniqueFd socket;
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(&socket, /*hosts_executor=*/true));
  EXPECT_EQ(attached.response.epoch(), 1) << "the executor is in the next one";
  ASSERT_EQ(attached.fds.size(), 4);
  EXPECT_THAT(NameOf(attached.fds[2]), HasSubstr("toy/0/control"));
  EXPECT_THAT(Await(v1::WorkerEvent::kFailure).failure().reason(),
              HasSubstr("the trainer of rank 0 hosts the rank's executor from now on"));
  ASSERT_OK_AND_ASSIGN(const Packet setup, ReceivePacket(attached.fds[3].get()));
  EXPECT_THAT(setup.bytes, HasSubstr("setup of device"));
}

TEST_F(DescriptorServerTest, WhatIsNoRequestGetsNoDescriptor) {
  v1::LocalRequest nothing, other, map;
  other.mutable_attach()->set_job_id("other");
  map.mutable_map()->set_job_id("other");  // This server gives no maps.
  v1::LocalRequest old = other;
  old.set_protocol(1);
  const std::pair<std::string, absl::StatusCode> kBad[] = {
      {"x", absl::StatusCode::kInvalidArgument},
      {std::string(4096, '|'), absl::StatusCode::kInvalidArgument},
      {EncodeRequest(nothing), absl::StatusCode::kInvalidArgument},
      {EncodeRequest(map), absl::StatusCode::kInvalidArgument},
      {DetachText(), absl::StatusCode::kInvalidArgument},
      {EncodeRequest(other), absl::StatusCode::kNotFound},
      {old.SerializeAsString(), absl::StatusCode::kFailedPrecondition}};
  for (const auto& [bad, code] : kBad) {
    UniqueFd socket;
    ASSERT_OK_AND_ASSIGN(const Packet refused, Ask(bad, &socket));
    EXPECT_TRUE(refused.fds.empty()) << bad;
    EXPECT_EQ(ParseReply(refused.bytes).status().code(), code) << bad;
  }
  EXPECT_OK(TryAttach()) << "and the rank is still free";
}

TEST_F(DescriptorServerTest, TrainerThatSaysDetachDisturbsNobody) {
  UniqueFd socket, next;
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(&socket));
  EXPECT_THAT(TryAttach(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rank 0")));
  ASSERT_OK(SendPacket(socket.get(), DetachText()));
  socket.Reset();
  EXPECT_NE(AttachOnceFree(&next), attached.response.attachment());
  EXPECT_FALSE(HasFailed());
}

TEST_F(DescriptorServerTest, SocketThatClosesWithoutAWordIsADeadTrainerAndEndsTheEpoch) {
  for (const std::string& last_word : {std::string(), std::string("farewell"), AttachText()}) {
    SCOPED_TRACE(last_word);
    UniqueFd socket;
    AttachOnceFree(&socket);
    if (!last_word.empty()) {
      ASSERT_OK(SendPacket(socket.get(), last_word));
    }
    socket.Reset();
    const v1::RankFailure failure = Await(v1::WorkerEvent::kFailure).failure();
    EXPECT_EQ(failure.rank(), 0);
    EXPECT_THAT(failure.reason(), HasSubstr("the trainer of rank 0 died"));
    EXPECT_THAT(TryAttach(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("try again")));
    StartEpoch(failure.epoch() + 1);
  }
}

TEST_F(DescriptorServerTest, StoppingClosesTheSocketsOfAllTrainersAndIsNoFailureOfTheirs) {
  UniqueFd socket;
  ASSERT_OK(Attach(&socket));
  server_.reset();
  EXPECT_THAT(ReceivePacket(socket.get()), StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_FALSE(HasFailed());
  EXPECT_NE(access((folder_ + "/d.sock").c_str(), F_OK), 0);
}

TEST_F(DescriptorServerTest, SecondServerOnThePathIsRefused) {
  EXPECT_THAT(DescriptorServer::Start(server_->path(), &keeper_),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(server_->path())));
}

TEST_F(DescriptorServerTest, WhoSaysNothingIsSentAway) {
  server_.reset();
  DescriptorServer::Options options;
  options.request_timeout = absl::Milliseconds(20);
  ASSERT_OK_AND_ASSIGN(server_, DescriptorServer::Start(folder_ + "/d.sock", &keeper_, options));
  const size_t before = NumDescriptors();
  {
    ASSERT_OK_AND_ASSIGN(const UniqueFd silent, ConnectPacketSocket(server_->path()));
    ASSERT_OK_AND_ASSIGN(const Packet answer, ReceivePacket(silent.get()));
    EXPECT_THAT(answer.bytes, HasSubstr("no request arrived within 20ms"));
    EXPECT_THAT(ReceivePacket(silent.get()), StatusIs(absl::StatusCode::kUnavailable, testing::_));
  }
  EXPECT_TRUE(Eventually([&] { return NumDescriptors() == before; })) << "with no new connection";
}

TEST_F(DescriptorServerTest, TooManyWhoSayNothingKeepNobodyOutForEver) {
  server_.reset();
  DescriptorServer::Options options;
  options.max_silent = 2;
  ASSERT_OK_AND_ASSIGN(server_, DescriptorServer::Start(folder_ + "/d.sock", &keeper_, options));
  UniqueFd trainer;
  ASSERT_OK(Attach(&trainer)) << "and counts no more";
  ASSERT_OK_AND_ASSIGN(UniqueFd first, ConnectPacketSocket(server_->path()));
  ASSERT_OK_AND_ASSIGN(const UniqueFd second, ConnectPacketSocket(server_->path()));
  ASSERT_OK_AND_ASSIGN(const UniqueFd third, ConnectPacketSocket(server_->path()));
  ASSERT_OK_AND_ASSIGN(const Packet refused, ReceivePacket(third.get()));
  EXPECT_THAT(refused.bytes, HasSubstr("2 connections have been given nothing yet"));
  first.Reset();
  EXPECT_TRUE(Eventually([&] {
    UniqueFd next;
    const auto packet = Ask("x", &next);
    return packet.ok() && absl::StrContains(packet->bytes, "not a request");
  }));
}

TEST_F(DescriptorServerTest, WithoutDescriptorsTrainersWaitAndTheServerIsIdle) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, server_->path().c_str(), sizeof(address.sun_path) - 1);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit old_limit = limit;
  limit.rlim_cur = dup(socket.get());  // The lowest that is free.
  close(limit.rlim_cur);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_OK(SendPacket(socket.get(), AttachText()));
  const clock_t cpu_before = clock();
  pollfd wait = {socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 300), 0) << "nothing comes";
  EXPECT_LT(clock() - cpu_before, CLOCKS_PER_SEC / 10) << "and nobody is busy";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  ASSERT_OK_AND_ASSIGN(const Packet packet, ReceivePacket(socket.get()));
  EXPECT_OK(ParseReply(packet.bytes).status());
}

TEST_F(DescriptorServerTest, WithoutThreadsTrainersAreSentAwayAndTheAttachedGoOn) {
  UniqueFd trainer;
  ASSERT_OK(Attach(&trainer));
  {
    const NoMoreThreads limit;
    ASSERT_OK_AND_ASSIGN(const UniqueFd next, ConnectPacketSocket(server_->path()));
    ASSERT_OK_AND_ASSIGN(const Packet refused, ReceivePacket(next.get()));
    EXPECT_EQ(ParseReply(refused.bytes).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(DescriptorServer::Start(folder_ + "/e.sock", &keeper_),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("descriptor socket")));
  }
  EXPECT_THAT(TryAttach(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rank 0")));
  UniqueFd last;
  ASSERT_OK_AND_ASSIGN(const Packet packet, Ask("x", &last));
  EXPECT_THAT(packet.bytes, HasSubstr("not a request"));
}

// --- Clients that ask for a map ---

class DirectMapServerTest : public DescriptorServerTest {
 protected:
  void SetUp() override {
    DescriptorServerTest::SetUp();
    server_.reset();
    DescriptorServer::Options options;
    options.direct_maps = &maps_;
    options.max_silent = 2;
    ASSERT_OK_AND_ASSIGN(server_, DescriptorServer::Start(folder_ + "/d.sock", &keeper_, options));
    keeper_.Find("toy")->regions().group()->initialized.store(1);
    v1::LocalRequest request;
    request.mutable_map()->set_job_id("toy");
    map_ = EncodeRequest(request);
  }
  void TearDown() override {
    server_.reset();  // Before what it gives from.
    DescriptorServerTest::TearDown();
  }

  DirectMaps maps_{[this](const std::string& job_id) { return keeper_.Find(job_id); }};
  std::string map_;
};

TEST_F(DirectMapServerTest, ThoseThatMapAreNoneOfThoseThatWereGivenNothing) {
  std::vector<UniqueFd> clients(DirectMaps::kMaxMapsOfAJob);
  for (UniqueFd& client : clients) {
    ASSERT_OK_AND_ASSIGN(const Packet given, Ask(map_, &client));
    ASSERT_OK(ParseReply(given.bytes).status());
    EXPECT_EQ(given.fds.size(), 2u) << "the group's and the rank's";
  }
  UniqueFd next;
  ASSERT_OK_AND_ASSIGN(const Packet refused, Ask(map_, &next));
  EXPECT_THAT(ParseReply(refused.bytes).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("'toy'")));
  server_.reset();
  for (const UniqueFd& client : clients)
    EXPECT_TRUE(absl::IsUnavailable(ReceivePacket(client.get()).status())) << "it is closed";
}

TEST_F(DirectMapServerTest, WithoutThreadsNobodyMapsForLongAndNoPlaceIsLost) {
  {
    const NoMoreThreads limit;
    for (int i = 0; i < 2 * DirectMaps::kMaxMapsOfAJob; ++i) {
      // It is sent away before it has asked, or answered before it is seen that it cannot be
      // watched.
      ASSERT_OK_AND_ASSIGN(const UniqueFd client, ConnectPacketSocket(server_->path()));
      (void)SendPacket(client.get(), map_);
      int num_packets = 0;
      while (ReceivePacket(client.get()).ok()) ++num_packets;
      EXPECT_LE(num_packets, 2) << "an answer, and why it ends";
    }
  }
  std::vector<UniqueFd> clients(DirectMaps::kMaxMapsOfAJob);
  for (UniqueFd& client : clients) {
    ASSERT_OK_AND_ASSIGN(const Packet given, Ask(map_, &client));
    EXPECT_OK(ParseReply(given.bytes).status());
  }
}

}  // namespace
}  // namespace tessera
