// Clients that ask a worker itself for a job's state to map: where nobody needs a coordinator for
// it, and where one is asked after all.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
#include "tessera/live_map.h"
#include "tests/integration/live_map_fixture.h"
#include "tests/integration/version_changes.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::FakeGpuMemory;
using testing_support::InitializeToy;
using testing_support::MakeFakeGpuDevice;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

using LiveMapAtWorkerTest = LiveMapTest;

class LiveMapAtWorkerChangesTest : public LiveMapTest,
                                   public ::testing::WithParamInterface<VersionChange> {};

TEST_P(LiveMapAtWorkerChangesTest, VersionStandsForOneMoreAndThenTheNewestIsShown) {
  Start(1, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  options.config.optimizer_in_backward = GetParam().optimizer_in_backward;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::string saved =
      ::testing::TempDir() + "/mapped-at-worker-" + GetParam().name + ".safetensors";
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(team.RunAll([&](Session* session) { return session->Save(saved); }));
  ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(AtWorker(), query_));
  EXPECT_EQ(map->version().committed_step, 1);
  const Copied before = CopyOf(map->version(), map->entries());
  ASSERT_OK(GetParam().make(&team, 2, saved));
  EXPECT_TRUE(map->Validate());
  ExpectSame(CopyOf(map->version(), map->entries()), before);
  ASSERT_OK(GetParam().make(&team, 3, saved));
  EXPECT_FALSE(map->Validate());
  ASSERT_OK(map->Refresh());
  EXPECT_EQ(map->version().committed_step, 3);
  ExpectNothingWasEverHeld();
  ASSERT_OK_AND_ASSIGN(const Copied read, Get(query_));
  ExpectSame(CopyOf(map->version(), map->entries()), read);
}

INSTANTIATE_TEST_SUITE_P(Changes, LiveMapAtWorkerChangesTest, ::testing::ValuesIn(VersionChanges()),
                         [](const auto& info) { return info.param.name; });

TEST_F(LiveMapAtWorkerTest, AnswerThatHasNoRoomInAPacketComesAsAFile) {
  Start(1, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  for (int i = 0; i < 1500; ++i)
    options.model.units[0].parameters.push_back({absl::StrCat("many", i), {3}, DType::kFp32});
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(AtWorker(), query_));
  ASSERT_OK_AND_ASSIGN(const Copied read, Get(query_));
  EXPECT_GT(read.entries.size(), 4500u);
  ExpectSame(CopyOf(map->version(), map->entries()), read);
}

// --- What the worker cannot give ---

TEST_F(LiveMapAtWorkerTest, JobOfSeveralWorkersIsRefusedThereAndMappedByTheCoordinator) {
  Start(2, 2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(ToyOptions(*cluster_, "toy", 3), 2));
  ASSERT_OK(team.TrainTo(2));
  for (const int worker : {0, 1}) {
    LiveReaderOptions options = AtWorker(worker);
    EXPECT_THAT(LiveMap::Open(options, query_).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("other workers have ranks of job 'toy'")));
    options.coordinator_address = reader_options_.coordinator_address;
    ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(options, query_));
    ASSERT_OK_AND_ASSIGN(const Copied read, Get(query_));
    ExpectSame(CopyOf(map->version(), map->entries()), read);
  }
}

TEST_F(LiveMapAtWorkerTest, WhatItHasNotAsItIsAskedForIsRefusedByNameAndReadOtherwise) {
  Start(2, 2);
  const LiveReaderOptions at_worker = AtWorker(0);
  const auto expect_refused = [&](const LiveQuery& query, absl::StatusCode code,
                                  const std::string& why) {
    EXPECT_THAT(LiveMap::Open(at_worker, query).status(), StatusIs(code, HasSubstr(why)));
    EXPECT_THAT(LiveMap::Open(at_worker, query).status(),
                StatusIs(code, HasSubstr(at_worker.worker_address)));
  };
  expect_refused(query_, absl::StatusCode::kNotFound, "no job 'toy'");
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster_, "toy", 2)));
  expect_refused(query_, absl::StatusCode::kFailedPrecondition, "no values yet");
  ASSERT_OK(team.TrainTo(2));
  EXPECT_OK(LiveMap::Open(at_worker, query_).status());
  const auto expect_fetched = [&](const LiveQuery& query, const std::string& why) {
    expect_refused(query, absl::StatusCode::kFailedPrecondition, why);
    LiveReaderOptions both = at_worker;
    both.coordinator_address = reader_options_.coordinator_address;
    Copied seen;
    ASSERT_OK_AND_ASSIGN(const VisitedState visited,
                         VisitLiveState(both, query, [&](const LiveVersion& version, auto entries) {
                           seen = CopyOf(version, entries);
                           return absl::OkStatus();
                         }));
    EXPECT_FALSE(visited.is_mapped);
    ASSERT_OK_AND_ASSIGN(const Copied read, Get(query));
    ExpectSame(seen, read);
  };
  LiveQuery query = query_;
  query.dtype = DType::kBf16;
  expect_fetched(query, "kept in fp32: in BF16 it can be fetched");
  query = query_;
  query.part = {LiveForm::kSharded, 1};
  expect_fetched(query, "a rank's part");
  query.part = {LiveForm::kSharded, 2};
  expect_refused(query, absl::StatusCode::kInvalidArgument, "rank");
  query = query_;
  query.include = {"nothing.of.it"};
  expect_refused(query, absl::StatusCode::kNotFound, "no parameter's name");
  // Of the one that has no rank of it the coordinator is asked in its place.
  LiveReaderOptions other = AtWorker(1);
  EXPECT_THAT(LiveMap::Open(other, query_).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no job 'toy'")));
  other.coordinator_address = reader_options_.coordinator_address;
  EXPECT_OK(LiveMap::Open(other, query_).status());
}

TEST_F(LiveMapAtWorkerTest, AddressThatIsNoWorkersIsRefusedByName) {
  Start(1, 1);
  LiveReaderOptions options;
  options.worker_address = reader_options_.coordinator_address;
  EXPECT_THAT(LiveMap::Open(options, query_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(options.worker_address)));
  options.worker_address = "unix:/nowhere/worker.sock";
  EXPECT_THAT(LiveMap::Open(options, query_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/nowhere")));
}

TEST_F(LiveMapAtWorkerTest, StateOnAGpuIsRefused) {
  LocalCluster::Options cluster;
  cluster.num_devices = 1;
  cluster.device_memory = FakeGpuMemory();
  cluster.machine = std::make_shared<ExecutorMachine>();
  cluster.machine->make_device = MakeFakeGpuDevice;
  ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(cluster));
  query_.job_id = "toy";
  SessionOptions options = ToyOptions(*cluster_, "toy", 1);
  options.make_device = MakeFakeGpuDevice;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.RunAll(InitializeToy));
  EXPECT_THAT(LiveMap::Open(AtWorker(), query_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("on a GPU")));
}

// --- Which clients get a map, and what they leave ---

TEST_F(LiveMapAtWorkerTest, AsManyMapAJobAsMayAndOneThatEndsLeavesItsPlace) {
  Start(1, 1);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster_, "toy", 1)));
  ASSERT_OK(team.TrainTo(1));
  std::vector<std::unique_ptr<LiveMap>> maps;
  for (int i = 0; i < 8; ++i) {
    ASSERT_OK_AND_ASSIGN(maps.emplace_back(), LiveMap::Open(AtWorker(), query_));
  }
  EXPECT_THAT(LiveMap::Open(AtWorker(), query_).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("map job 'toy' already")));
  maps.pop_back();
  EXPECT_TRUE(Eventually([&] { return LiveMap::Open(AtWorker(), query_).ok(); }));
  ASSERT_OK(team.TrainTo(3));
  for (const auto& map : maps) {
    EXPECT_FALSE(map->Validate());
    ASSERT_OK(map->Refresh());
    EXPECT_EQ(map->version().trained_step, 3);
  }
}

TEST_F(LiveMapAtWorkerTest, ClientsAreToldThatTheJobWasDeletedAndKeepWhatItWas) {
  Start(1, 2);
  std::optional<TrainerTeam> team;
  ASSERT_OK_AND_ASSIGN(team, TrainerTeam::Open(ToyOptions(*cluster_, "toy", 2)));
  ASSERT_OK(team->TrainTo(2));
  ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(AtWorker(), query_));
  const Copied before = CopyOf(map->version(), map->entries());
  team.reset();
  v1::DeleteJobRequest request;
  request.set_request_id("delete");
  request.set_job_id("toy");
  const auto stub = v1::Jobs::NewStub(*OpenChannel({reader_options_.coordinator_address}, {}));
  grpc::ClientContext context;
  v1::DeleteJobResponse response;
  ASSERT_TRUE(stub->DeleteJob(&context, request, &response).ok());
  EXPECT_TRUE(Eventually([&] { return absl::IsUnavailable(map->Refresh()); }));
  EXPECT_THAT(map->Refresh(), StatusIs(absl::StatusCode::kUnavailable,
                                       HasSubstr("'toy' is gone from this worker")));
  ExpectSame(CopyOf(map->version(), map->entries()), before);
  EXPECT_TRUE(map->Validate()) << "it is what the job was at that step";
}

TEST_F(LiveMapAtWorkerTest, DescriptorsAreForReading) {
  Start(1, 2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster_, "toy", 2)));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK_AND_ASSIGN(const std::string path, DescriptorSocketOf(cluster_->worker_address()));
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, ConnectPacketSocket(path));
  v1::LiveStateQuery query;
  query.set_job_id("toy");
  v1::LocalRequest request;
  *request.mutable_map() = query;
  ASSERT_OK(SendPacket(socket.get(), EncodeRequest(request)));
  ASSERT_OK_AND_ASSIGN(const Packet given, ReceivePacket(socket.get()));
  ASSERT_OK(ParseReply(given.bytes).status());
  ASSERT_EQ(given.fds.size(), 3u) << "the group, two ranks";
  const char byte = 'x';
  for (const UniqueFd& fd : given.fds) EXPECT_EQ(pwrite(fd.get(), &byte, 1, 0), -1);
  // A client that sends more is cut off.
  ASSERT_OK(SendPacket(socket.get(), "more"));
  EXPECT_TRUE(absl::IsUnavailable(ReceivePacket(socket.get()).status()));
}

TEST_F(LiveMapAtWorkerTest, AThousandMapsLeaveNoDescriptor) {
  Start(1, 2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster_, "toy", 2)));
  ASSERT_OK(team.TrainTo(1));
  const auto count = [] { return DescriptorsOf(getpid()).size(); };  // Of client and worker.
  const size_t before = count();
  for (int i = 0; i < 1000; ++i) {
    // The place of one that has ended may still be taken.
    std::unique_ptr<LiveMap> map;
    ASSERT_TRUE(Eventually([&] {
      auto opened = LiveMap::Open(AtWorker(), query_);
      if (opened.ok()) map = *std::move(opened);
      return map != nullptr;
    }));
    ASSERT_TRUE(map->Validate());
  }
  EXPECT_TRUE(Eventually([&] { return count() <= before; })) << count() << " after " << before;
}

}  // namespace
}  // namespace tessera
