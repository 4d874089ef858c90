// Clients that map the state of jobs that train, from real workers and executors (processes), against
// what clients read that have it sent to them.
#include "tessera/live_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/session/session_buffers.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "shm/fd_passing.h"
#include "shm/local_messages.h"
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
using testing_support::PublishToyBuffers;
using testing_support::ToyBuffers;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

// Units of random shapes, some frozen, empty, without dimensions or tied.
ModelSpec RandomModel(std::mt19937* random, bool with_doubles) {
  const auto upto = [random](int most) { return static_cast<int64_t>((*random)() % (most + 1)); };
  ModelSpec model;
  const int num_units = 1 + upto(4);
  for (int u = 0; u < num_units; ++u) {
    UnitSpec& unit = model.units.emplace_back();
    unit.name = absl::StrCat("unit", u);
    const DType dtype = with_doubles && upto(1) == 0 ? DType::kFp64 : DType::kFp32;
    const int num_parameters = 1 + upto(3);
    for (int p = 0; p < num_parameters; ++p) {
      TensorSpec& spec = unit.parameters.emplace_back();
      spec.name = absl::StrCat(unit.name, ".p", p);
      spec.dtype = dtype;
      for (int64_t left = upto(3); left > 0; --left) spec.shape.push_back(1 + upto(12));
      if (p > 0 && upto(5) == 0) spec.shape.push_back(0);
      spec.requires_grad = p == 0 || upto(3) != 0;
    }
    if (upto(1) == 0) {
      TensorSpec tied = unit.parameters.front();
      tied.shared_with = std::exchange(tied.name, unit.name + ".tied");
      unit.parameters.push_back(tied);
    }
  }
  model.buffers = ToyBuffers();
  return model;
}

// How many ranks there are.
class LiveMapModelsTest : public LiveMapTest, public ::testing::WithParamInterface<int> {};

TEST_P(LiveMapModelsTest, EqualsWhatIsReadBitForBitWhateverTheModel) {
  const int world_size = GetParam();
  Start(1, 4 * world_size);  // Jobs stay.
  std::mt19937 random(17 * world_size);
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const bool with_doubles = i == 3;  // Which the toy's gradients are not for.
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("toy", i), world_size);
    options.model = RandomModel(&random, with_doubles);
    query_.job_id = options.job_id;
    auto team = TrainerTeam::Open(options);
    ASSERT_OK(team.status());
    ASSERT_OK(team->RunAll([&](Session* session) -> absl::Status {
      PublishToyBuffers(session);
      if (!with_doubles) return InitializeToy(session);
      return session->Initialize([](int unit, int, Values values) {
        for (size_t at = 0; at < values.size(); ++at) {
          const double value = 1.0 / (3.0 + unit + static_cast<double>(at));
          if (values.dtype() == DType::kFp64) {
            values.as<double>()[at] = value;
          } else {
            values.as<float>()[at] = static_cast<float>(value);
          }
        }
      });
    }));
    for (int step = 0; step < 3; ++step) {
      if (step > 0 && !with_doubles) {
        ASSERT_OK(team->TrainTo(step));
      }
      ASSERT_OK_AND_ASSIGN(const Copied read, Get(query_));
      ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(AtWorker(), query_));
      ExpectSame(CopyOf(map->version(), map->entries()), read);
      EXPECT_TRUE(map->Validate());
    }
    LiveQuery some = query_;
    some.include = {"unit0.*", "toy.count"};
    some.moments = false;
    ASSERT_OK_AND_ASSIGN(const Copied read, Get(some));
    ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(AtWorker(), some));
    ExpectSame(CopyOf(map->version(), map->entries()), read);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, LiveMapModelsTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return absl::StrCat(info.param, "Ranks"); });

TEST_F(LiveMapTest, AnswerThatHasNoRoomInAPacketComesAsAFile) {
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

TEST_F(LiveMapTest, RanksOfSeveralWorkersAreMappedAtOneStep) {
  Start(2, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 3);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(options, 2));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(reader_options_, query_));
  ASSERT_OK_AND_ASSIGN(const Copied read, Get(query_));
  ExpectSame(CopyOf(map->version(), map->entries()), read);
  ASSERT_OK(team.TrainTo(5));
  EXPECT_FALSE(map->Validate());
  ASSERT_OK(map->Refresh());
  ASSERT_OK_AND_ASSIGN(const Copied later, Get(query_));
  ExpectSame(CopyOf(map->version(), map->entries()), later);
  EXPECT_EQ(map->version().trained_step, 5);
}

TEST_F(LiveMapTest, OneOfSeveralWorkersAloneMapsNothingAndTheStateIsFetched) {
  Start(2, 2);
  SessionOptions trainer = ToyOptions(*cluster_, "toy", 3);
  // So that no worker has all elements of the small units by itself.
  trainer.config.layout.shard_alignment_bytes = 0;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(trainer, 2));
  ASSERT_OK(team.TrainTo(2));
  for (const int worker : {0, 1}) {
    LiveReaderOptions options = AtWorker(worker);
    EXPECT_THAT(LiveMap::Open(options, query_).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("other workers have ranks of the job")));
    options.coordinator_address = reader_options_.coordinator_address;
    ExpectFetched(options, query_);
  }
}

// --- What overwrites a version ---

class LiveMapChangesTest : public LiveMapTest,
                           public ::testing::WithParamInterface<VersionChange> {};

TEST_P(LiveMapChangesTest, VersionStandsForOneMoreAndIsVoidWithTheOneAfterIt) {
  Start(1, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  options.config.optimizer_in_backward = GetParam().optimizer_in_backward;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  const std::string saved = ::testing::TempDir() + "/mapped-" + GetParam().name + ".safetensors";
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(team.RunAll([&](Session* session) { return session->Save(saved); }));
  ASSERT_OK(team.TrainTo(3));
  ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(reader_options_, query_));
  EXPECT_EQ(map->version().committed_step, 3);
  const Copied before = CopyOf(map->version(), map->entries());
  ASSERT_OK(GetParam().make(&team, 4, saved));
  EXPECT_TRUE(map->Validate());
  ExpectSame(CopyOf(map->version(), map->entries()), before);
  ASSERT_OK(GetParam().make(&team, 5, saved));
  EXPECT_FALSE(map->Validate());
  EXPECT_EQ(map->version().committed_step, 3) << "it says of what it was";
  ASSERT_OK(map->Refresh());
  EXPECT_TRUE(map->Validate());
  EXPECT_EQ(map->version().committed_step, 5);
  ExpectNothingWasEverHeld();
  ASSERT_OK_AND_ASSIGN(const Copied read, Get(query_));
  ExpectSame(CopyOf(map->version(), map->entries()), read);
}

INSTANTIATE_TEST_SUITE_P(Changes, LiveMapChangesTest, ::testing::ValuesIn(VersionChanges()),
                         [](const auto& info) { return info.param.name; });

TEST_F(LiveMapTest, VisitorWhoseReadingIsVoidSeesALaterStateAndInTheEndOneThatWasFetched) {
  Start(1, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(1));
  int64_t step = 1;
  Copied seen;
  int visits = 0;
  const auto note = [&](const LiveVersion& version, absl::Span<const MappedEntry> entries) {
    ++visits;
    seen = CopyOf(version, entries);
  };
  // Undisturbed.
  ASSERT_OK_AND_ASSIGN(
      VisitedState visited,
      VisitLiveState(reader_options_, query_, [&](const LiveVersion& version, auto entries) {
        note(version, entries);
        return absl::OkStatus();
      }));
  EXPECT_TRUE(visited.is_mapped);
  EXPECT_EQ(visits, 1);
  ASSERT_OK_AND_ASSIGN(Copied read, Get(query_));
  ExpectSame(seen, read);
  // Once two steps are taken meanwhile; its error is void then, too.
  visits = 0;
  ASSERT_OK_AND_ASSIGN(visited, VisitLiveState(reader_options_, query_,
                                               [&](const LiveVersion& version, auto entries) {
                                                 note(version, entries);
                                                 if (visits > 1) return absl::OkStatus();
                                                 EXPECT_OK(team.TrainTo(step += 2));
                                                 return absl::InternalError("nonsense was seen");
                                               }));
  EXPECT_TRUE(visited.is_mapped);
  EXPECT_EQ(visits, 2);
  EXPECT_EQ(visited.version.trained_step, step);
  // Each time, so that it must be fetched.
  visits = 0;
  ASSERT_OK_AND_ASSIGN(visited, VisitLiveState(reader_options_, query_,
                                               [&](const LiveVersion& version, auto entries) {
                                                 note(version, entries);
                                                 EXPECT_OK(team.TrainTo(step += 2));
                                                 return absl::OkStatus();
                                               }));
  EXPECT_FALSE(visited.is_mapped);
  EXPECT_EQ(visited.version.trained_step, step - 2);
  EXPECT_EQ(seen.version.trained_step, step - 2) << "the last call counts";
  // An error of a reading that stood is the visitor's.
  EXPECT_THAT(
      VisitLiveState(reader_options_, query_,
                     [](const LiveVersion&, auto) { return absl::InternalError("this was seen"); })
          .status(),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("this was seen")));
}

// Notes what comes, and calls `on_begin` with how often something began.
class NotingSink : public LiveSink {
 public:
  explicit NotingSink(std::function<absl::Status(int)> on_begin) : on_begin_(std::move(on_begin)) {}

  absl::Status Begin(const LiveVersion& version) override {
    copied = Copied();
    copied.version = version;
    return on_begin_(++num_begun);
  }
  absl::Status Entry(const LiveEntry& entry) override {
    copied.entries.push_back(entry);
    copied.bytes.emplace_back();
    return absl::OkStatus();
  }
  absl::Status Chunk(int64_t offset_elements, absl::string_view bytes) override {
    EXPECT_EQ(offset_elements * SizeBits(copied.entries.back().dtype) / 8,
              static_cast<int64_t>(copied.bytes.back().size()));
    EXPECT_LE(bytes.size(), size_t{1} << 20);
    copied.bytes.back().append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  Copied copied;
  int num_begun = 0;

 private:
  const std::function<absl::Status(int)> on_begin_;
};

TEST_F(LiveMapTest, CopyIsOfAMapThatStoodOrElseFetched) {
  Start(1, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  options.model.units[0].parameters.push_back({"large", {600'001}, DType::kFp32});
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK_AND_ASSIGN(const auto reader, LiveReader::Open(reader_options_));
  int64_t step = 1;
  // How often it is overtaken, and how often it then begins.
  for (const auto& [times, begins, is_mapped] :
       {std::tuple<int, int, bool>{0, 1, true}, {1, 2, true}, {3, 4, false}}) {
    NotingSink sink([&, times = times](int begun) {
      return begun <= times ? team.TrainTo(step += 2) : absl::OkStatus();
    });
    ASSERT_OK_AND_ASSIGN(const VisitedState copied,
                         CopyLiveState(reader_options_, reader.get(), query_, &sink));
    EXPECT_EQ(copied.is_mapped, is_mapped);
    EXPECT_EQ(sink.num_begun, begins);
    EXPECT_EQ(copied.version.trained_step, step);
    ASSERT_OK_AND_ASSIGN(const Copied read, Get(query_));
    ExpectSame(sink.copied, read);
  }
  reader_options_.through_coordinator = true;
  NotingSink relayed([](int) { return absl::OkStatus(); });
  ASSERT_OK_AND_ASSIGN(const VisitedState copied,
                       CopyLiveState(reader_options_, reader.get(), query_, &relayed));
  EXPECT_FALSE(copied.is_mapped);
  reader_options_.through_coordinator = false;
  NotingSink full([](int) { return absl::InternalError("it has no room"); });
  EXPECT_THAT(CopyLiveState(reader_options_, reader.get(), query_, &full).status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("it has no room")));
}

// --- What cannot be mapped ---

TEST_F(LiveMapTest, WhatIsNotInMemoryAsRequestedIsRefusedByNameAndFetched) {
  Start(2, 2);
  LiveReaderOptions options = AtWorker(0);
  const auto expect_refused = [&](const LiveQuery& query, absl::StatusCode code,
                                  const std::string& why) {
    EXPECT_THAT(LiveMap::Open(options, query).status(), StatusIs(code, HasSubstr(why)));
    EXPECT_THAT(LiveMap::Open(options, query).status(),
                StatusIs(code, HasSubstr(options.worker_addresses[0])));
  };
  expect_refused(query_, absl::StatusCode::kNotFound, "no job 'toy'");
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster_, "toy", 2)));
  expect_refused(query_, absl::StatusCode::kFailedPrecondition, "no values yet");
  ASSERT_OK(team.TrainTo(2));
  LiveQuery query = query_;
  query.dtype = DType::kFp32;  // As it is kept.
  EXPECT_OK(LiveMap::Open(options, query).status());
  query.dtype = DType::kBf16;
  expect_refused(query, absl::StatusCode::kFailedPrecondition,
                 "kept in fp32: in BF16 it can be fetched");
  // Without a coordinator nobody can be asked for it.
  EXPECT_THAT(
      VisitLiveState(options, query, [](const LiveVersion&, auto) { return absl::OkStatus(); })
          .status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("kept in fp32")));
  options.coordinator_address = reader_options_.coordinator_address;
  ExpectFetched(options, query);
  query = query_;
  query.include = {"nothing.of.it"};
  expect_refused(query, absl::StatusCode::kNotFound, "no parameter's name");
  // The worker that has no rank of it.
  options = AtWorker(1);
  expect_refused(query_, absl::StatusCode::kNotFound, "no job 'toy'");
  options.coordinator_address = reader_options_.coordinator_address;
  ExpectFetched(options, query_);
}

TEST_F(LiveMapTest, AddressThatIsNoWorkersIsRefusedByName) {
  LiveReaderOptions options;
  options.worker_addresses = {"127.0.0.1:1"};
  EXPECT_THAT(LiveMap::Open(options, query_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("127.0.0.1:1")));
  options.worker_addresses = {"unix:/nowhere/worker.sock"};
  EXPECT_THAT(LiveMap::Open(options, query_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/nowhere")));
}

TEST_F(LiveMapTest, StateOnAGpuIsRefusedAndFetched) {
  LocalCluster::Options cluster;
  cluster.num_devices = 2;
  cluster.device_memory = FakeGpuMemory();
  cluster.machine = std::make_shared<ExecutorMachine>();
  cluster.machine->make_device = MakeFakeGpuDevice;
  ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(cluster));
  reader_options_.coordinator_address = cluster_->coordinator_address();
  reader_options_.worker_addresses = {cluster_->worker_address()};
  query_.job_id = "toy";
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  options.make_device = MakeFakeGpuDevice;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.RunAll(InitializeToy));
  EXPECT_THAT(LiveMap::Open(reader_options_, query_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("on a GPU")));
  ASSERT_OK_AND_ASSIGN(
      const VisitedState visited,
      VisitLiveState(reader_options_, query_, [](const LiveVersion&, auto entries) {
        EXPECT_FALSE(entries.empty());
        return absl::OkStatus();
      }));
  EXPECT_FALSE(visited.is_mapped);
}

// --- Which clients get what, and what they leave ---

TEST_F(LiveMapTest, AsManyMapAJobAsMayAndOneThatEndsLeavesItsPlace) {
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

TEST_F(LiveMapTest, DescriptorsAreForReading) {
  Start(1, 2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*cluster_, "toy", 2)));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK_AND_ASSIGN(const std::string path, DescriptorSocketOf(cluster_->worker_address()));
  ASSERT_OK_AND_ASSIGN(const UniqueFd socket, ConnectPacketSocket(path));
  v1::LocalRequest request;
  request.mutable_map()->set_job_id("toy");
  ASSERT_OK(SendPacket(socket.get(), EncodeRequest(request)));
  ASSERT_OK_AND_ASSIGN(const Packet given, ReceivePacket(socket.get()));
  ASSERT_OK(ParseReply(given.bytes).status());
  ASSERT_EQ(given.fds.size(), 3u) << "the group, two ranks";
  for (const UniqueFd& fd : given.fds) {
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    const char byte = 'x';
    EXPECT_EQ(pwrite(fd.get(), &byte, 1, 0), -1);
    EXPECT_NE(ftruncate(fd.get(), 0), 0);
    EXPECT_EQ(fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
    EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
    void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_NE(mprotect(mapped, 4096, PROT_READ | PROT_WRITE), 0) << "it became writable";
    munmap(mapped, 4096);
  }
  // A client that sends more is cut off.
  ASSERT_OK(SendPacket(socket.get(), "more"));
  EXPECT_TRUE(absl::IsUnavailable(ReceivePacket(socket.get()).status()));
}

TEST_F(LiveMapTest, WhatIsMappedOfAJobThatIsDeletedStaysAsItWas) {
  Start(1, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  std::optional<TrainerTeam> team;
  ASSERT_OK_AND_ASSIGN(team, TrainerTeam::Open(options));
  ASSERT_OK(team->TrainTo(2));
  ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(reader_options_, query_));
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

TEST_F(LiveMapTest, AThousandMapsLeaveNoDescriptor) {
  Start(1, 2);
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(1));
  const auto count = [] { return DescriptorsOf(getpid()).size(); };  // Of client and worker.
  ASSERT_OK(LiveMap::Open(reader_options_, query_).status());
  const size_t before = count() + 4;  // Of which some may still be on their way out, or in.
  for (int i = 0; i < 1000; ++i) {
    // The place of one that has ended may still be taken.
    std::unique_ptr<LiveMap> map;
    ASSERT_TRUE(Eventually([&] {
      auto opened = LiveMap::Open(reader_options_, query_);
      if (opened.ok()) map = *std::move(opened);
      return map != nullptr;
    }));
    if (i % 10 == 0) {
      ASSERT_OK(map->Refresh());
    }
    ASSERT_TRUE(map->Validate());
  }
  EXPECT_TRUE(Eventually([&] { return count() <= before; })) << count() << " after " << before;
  ExpectNothingWasEverHeld();
}

}  // namespace
}  // namespace tessera
