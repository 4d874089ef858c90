// Clients set and read the values of a job that trains, and what they, its workers and the
// coordinator tell each other is lost, repeated, delayed and cut: a put is set once, or never and
// its client hears that this may be so; a reading has the bytes of one step, or an error. Real
// processes.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/cli/worker_client.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/live_map.h"
#include "tessera/live_reader.h"
#include "tessera/session.h"
#include "tests/fault/lossy/lossy_cluster.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::RunTessera;
using testing_support::TrainerTeam;

constexpr int kRanks = 2;
// A parameter for each put, of which a part goes to each rank.
constexpr int kParameters = 2 * 7;
constexpr int64_t kNumel = 3000;
// Of the parameter that is trained: a step takes a quarter from each of its elements.
constexpr int64_t kTrainedNumel = 64;
constexpr float kOfStep = 0.25f;

std::string NameOf(int parameter) { return absl::StrCat("set.", parameter); }

std::string BytesOf(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), 0);
  memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class LossyLiveTest : public LossyCluster {
 protected:
  void TearDown() override {
    team_.reset();
    LossyCluster::TearDown();
  }
  // Values of all parameters are 1 at first.
  void StartTrainers() {
    // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
    static const auto* const last = new grpc::CompletionQueue();
    ASSERT_NE(last, nullptr);
    UnitSpec set = {"set", {}}, trained = {"trained", {{"trained.w", {kTrainedNumel}}}};
    for (int i = 0; i < kParameters; ++i) set.parameters.push_back({NameOf(i), {kNumel}});
    SessionOptions options;
    options.coordinator_address = coordinator_address();
    options.worker_address = worker_address();
    options.job_id = "toy";
    options.model = {{set, trained}};
    options.config.world_size = kRanks;
    options.config.optimizer = OptimizerKind::kSgd;
    options.config.groups[0].learning_rate = kOfStep;
    options.operation_timeout = absl::Seconds(60);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    team_.emplace(std::move(team));
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->Initialize([](int, int, absl::Span<float> values) {
        std::fill(values.begin(), values.end(), 1.0f);
      });
    }));
    TakeStep();
  }
  void TakeStep() {
    const std::vector<float> gradient(kTrainedNumel, 1.0f);
    ASSERT_OK(team_->RunAll([&](Session* session) {
      return session->RunStep([&]() -> absl::Status {
        RETURN_IF_ERROR(session->Unshard(1));
        RETURN_IF_ERROR(session->Reshard(1));
        RETURN_IF_ERROR(session->AddGradient(1, 0, gradient));
        RETURN_IF_ERROR(session->Reduce(1));
        return session->Step().status();
      });
    }));
  }
  struct Reading {
    LiveVersion version;
    std::map<std::string, std::string> tensors;
  };
  static LiveQuery QueryOfAll() {
    LiveQuery query;
    query.job_id = "toy";
    return query;
  }
  // By a client that finds the coordinator there.
  static absl::StatusOr<Reading> Read(const std::string& coordinator,
                                      bool through_coordinator = false) {
    LiveReaderOptions options;
    options.coordinator_address = coordinator;
    options.through_coordinator = through_coordinator;
    ASSIGN_OR_RETURN(const auto reader, LiveReader::Open(options));
    Reading reading;
    ASSIGN_OR_RETURN(reading.version, reader->Read(QueryOfAll(), [&](const LiveEntry& entry) {
      std::string& bytes = reading.tensors[entry.name];
      bytes.resize(entry.size_bytes);
      return absl::MakeSpan(bytes.data(), bytes.size());
    }));
    return reading;
  }
  // As the worker's memory has it: no call is made.
  Reading ReadMapped() {
    LiveReaderOptions options;
    options.worker_addresses = {worker_address()};
    const auto map = LiveMap::Open(options, QueryOfAll());
    EXPECT_OK(map);
    if (!map.ok()) return {};
    Reading reading = {(*map)->version(), {}};
    for (const MappedEntry& entry : (*map)->entries())
      reading.tensors[entry.entry.name] = absl::StrJoin(entry.spans, "");
    EXPECT_TRUE((*map)->Validate());
    return reading;
  }
  static std::string TrainedAfter(int64_t step) {
    return BytesOf(std::vector<float>(kTrainedNumel, 1.0f - kOfStep * static_cast<float>(step)));
  }

  std::optional<TrainerTeam> team_;
};

// --- Puts ---

class LossyPutTest : public LossyLiveTest {
 protected:
  struct Put {
    CliResult result;
    std::string bytes;
    bool is_told_that_nothing_was_changed() const {
      return absl::StrContains(result.err, "nothing was changed");
    }
  };

  // Files of puts that processes of the worker have: none of them knows of a put otherwise.
  int CountSpools(bool of_daemon) {
    std::vector<int> pids;
    for (const auto& [label, pid] : ExecutorsOf(worker_->pid())) pids.push_back(pid);
    if (of_daemon) pids.push_back(worker_->pid());
    int count = 0;
    for (const int pid : pids) {
      for (const auto& [fd, what] : DescriptorsOf(pid))
        count += absl::StartsWith(what, "/tmp/#") && absl::EndsWith(what, "(deleted)") ? 1 : 0;
    }
    return count;
  }
  // Sets this parameter, of a client that finds the coordinator there. Steps are taken while the
  // ranks have the put. Returns once no process of the worker has it.
  void SetOne(int parameter, const std::string& coordinator) {
    const std::string path = absl::StrCat(folder_, "/put.safetensors");
    testing_support::WritePutFile(path, {{NameOf(parameter), {kNumel}}});
    Put put;
    put.bytes = testing_support::ReadStored(path).at(NameOf(parameter)).second;
    std::atomic<bool> ended{false};
    std::thread client([&] {
      put.result = RunTessera(coordinator, {"put", "--job", "toy", "--from", path, "--json"});
      ended.store(true);
    });
    EXPECT_TRUE(Eventually([&] {
      if (CountSpools(/*of_daemon=*/false) > 0) TakeStep();
      return ended.load();
    })) << "it does not end";
    client.join();
    EXPECT_TRUE(Eventually([&] { return CountSpools(/*of_daemon=*/true) == 0; }))
        << "its data are kept";
    puts_.push_back(std::move(put));
  }
  // Each was set once or never, as its client was told.
  void ExpectOnceOrNever() {
    const Reading end = ReadMapped();
    const std::string before = BytesOf(std::vector<float>(kNumel, 1.0f));
    int64_t num_set = 0;
    for (size_t i = 0; i < puts_.size(); ++i) {
      const Put& put = puts_[i];
      SCOPED_TRACE(absl::StrCat("put ", i, ": ", put.result.err));
      const std::string& now = end.tensors.at(NameOf(static_cast<int>(i)));
      const bool is_set = now == put.bytes;
      EXPECT_TRUE(is_set || now == before) << "a mixture";
      num_set += is_set ? 1 : 0;
      if (put.result.exit_code == 0) {
        EXPECT_TRUE(is_set);
        const auto json = nlohmann::json::parse(put.result.out);
        // Each makes one version, which no step makes.
        EXPECT_EQ(int64_t{json["committed_step"]} - int64_t{json["step"]}, num_set);
      } else if (put.is_told_that_nothing_was_changed()) {
        EXPECT_FALSE(is_set);
      } else {
        EXPECT_THAT(put.result.err, HasSubstr("UNAVAILABLE"));
      }
    }
    EXPECT_EQ(end.version.committed_step - end.version.trained_step, num_set);
    EXPECT_EQ(end.tensors.at("trained.w"), TrainedAfter(end.version.trained_step));
    EXPECT_GE(num_set, 1);
  }

  std::vector<Put> puts_;
};

TEST_P(LossyPutTest, IsSetOnceOrNeverHoweverItsClientAndTheCoordinatorMissEachOther) {
  StartCoordinator();
  StartWorker();
  ASSERT_NO_FATAL_FAILURE(StartTrainers());
  ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
  for (int i = 0; i < kParameters; ++i) {
    SetOne(i, dialled_address());
    if (puts_.back().result.exit_code == 0) continue;
    // Its client can find out, over the same way.
    const auto reading = Retried<Reading>([&] { return Read(dialled_address()); });
    ASSERT_OK(reading);
    EXPECT_TRUE(reading->tensors == ReadMapped().tensors);
  }
  ASSERT_NO_FATAL_FAILURE(TakeStep());
  ExpectOnceOrNever();
  const std::string fates = EndLayer();
  ExpectEveryFate(fates, "tessera.v1.LivePut/PutLiveState");
  ExpectEveryFate(fates, "tessera.v1.LiveState/ListLiveState");
}

// A stream that does not come is waited for, so these are few.
TEST_P(LossyPutTest, IsSetOnceOrNeverHoweverItsWorkerAndTheCoordinatorMissEachOther) {
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
  StartWorker();
  ASSERT_NO_FATAL_FAILURE(StartTrainers());
  int num_streams = 0;
  for (int i = 0; i < kParameters && num_streams < kSome; ++i) {
    SetOne(i, coordinator_address());
    // While the worker's line is cut it is told of no put.
    num_streams += absl::StrContains(puts_.back().result.err, "is not connected") ? 0 : 1;
  }
  ASSERT_NO_FATAL_FAILURE(TakeStep());
  ExpectOnceOrNever();
  ExpectEveryFate(EndLayer(), "tessera.v1.LivePutRelay/Relay");
}

// --- Readings ---

class LossyReadTest : public LossyLiveTest {
 protected:
  // While a step is taken. OK: it has the bytes of one step.
  absl::Status ReadDuringAStep(const std::string& coordinator, bool through_coordinator) {
    absl::StatusOr<Reading> reading;
    std::thread client([&] { reading = Read(coordinator, through_coordinator); });
    TakeStep();
    client.join();
    if (!reading.ok()) return reading.status();
    EXPECT_EQ(reading->tensors.at("trained.w"), TrainedAfter(reading->version.trained_step));
    for (int i = 0; i < kParameters; ++i)
      EXPECT_TRUE(reading->tensors.at(NameOf(i)) == BytesOf(std::vector<float>(kNumel, 1.0f)));
    return absl::OkStatus();
  }
};

TEST_P(LossyReadTest, HasTheBytesOfOneStepOrAnErrorOverItsClientsWay) {
  StartCoordinator();
  StartWorker();
  ASSERT_NO_FATAL_FAILURE(StartTrainers());
  ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
  int num_right = 0;
  for (int i = 0; i < 4 * kSome; ++i) {
    const absl::Status status = ReadDuringAStep(dialled_address(), i % 2 == 0);
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
    num_right += status.ok() ? 1 : 0;
  }
  EXPECT_GE(num_right, kSome);
  ExpectEveryFate(EndLayer(), "tessera.v1.LiveState/GetLiveState");
}

// A stream that does not come is waited for, so these are few.
TEST_P(LossyReadTest, HasTheBytesOfOneStepOrAnErrorOverItsWorkersWay) {
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
  StartWorker();
  ASSERT_NO_FATAL_FAILURE(StartTrainers());
  int num_right = 0;
  for (int i = 0; i < kSome; ++i) {
    const absl::Status status = ReadDuringAStep(coordinator_address(), i % 2 == 0);
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
    num_right += status.ok() ? 1 : 0;
  }
  EXPECT_GE(num_right, kSome / 2);
  ExpectEveryFate(EndLayer(), "tessera.v1.LiveRelay/Relay");
}

TEST_P(LossyReadTest, WorkerGivesTheBytesOfOneStepAndRightAnswersOverALossyWayToItself) {
  StartCoordinator();
  StartWorker();
  ASSERT_NO_FATAL_FAILURE(StartTrainers());
  // The layer listens where the worker's clients look for it.
  const std::string socket = folder_ + "/worker.sock", behind = folder_ + "/behind.sock";
  std::filesystem::rename(socket, behind);
  Layer layer;
  ASSERT_NO_FATAL_FAILURE(StartLayer("unix:" + behind, kSome, &layer, /*socket=*/"unix:" + socket));
  // What is not fetched from the worker comes through the coordinator.
  for (int i = 0; i < 2 * kSome; ++i)
    EXPECT_OK(ReadDuringAStep(coordinator_address(), /*through_coordinator=*/false));
  cli::Endpoint endpoint;
  endpoint.address = layer.address;
  ASSERT_OK_AND_ASSIGN(const auto client, cli::WorkerClient::Create(endpoint));
  for (int i = 0; i < kSome; ++i) {
    const auto status = client->GetStatus();
    EXPECT_TRUE(absl::IsUnavailable(status.status()) || status->worker_id() == "w");
    const auto dump = client->DumpRank("toy", Rank(1));
    EXPECT_TRUE(absl::IsUnavailable(dump.status()) || (dump->rank() == 1 && !dump->text().empty()));
  }
  const std::string fates = End(&layer);
  for (const char* method : {"LiveFetch/Fetch", "Worker/GetStatus", "Worker/DumpRank"})
    ExpectEveryFate(fates, absl::StrCat("tessera.v1.", method));
}

INSTANTIATE_TEST_SUITE_P(Seeds, LossyReadTest, testing::Range(1, 4));
INSTANTIATE_TEST_SUITE_P(Seeds, LossyPutTest, testing::Range(1, 4));

}  // namespace
}  // namespace tessera
