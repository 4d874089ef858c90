// Processes that map the state of a job, and the effect of killing or hanging any of these
// processes: nobody waits for a mapping client, a client leaves nothing, and what was validated was
// true.
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/live_map.h"
#include "tests/fault/live_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/region_view.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using demo::ChildProcess;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::MappingsOf;
using testing_support::MapRegionOf;
using testing_support::NumThreads;
using testing_support::ReadFile;

constexpr int kAtOnce = 8;  // As many clients as may map one job.

class LiveMapKillTest : public LiveCluster {
 protected:
  void Start(const std::string& faults = "") {
    ASSERT_NO_FATAL_FAILURE(StartJob(kFewElements, faults));
    small_at_[steps_] = small_;
  }
  void StepOnce() {
    ASSERT_NO_FATAL_FAILURE(Step());
    small_at_[steps_] = small_;
  }
  std::unique_ptr<ChildProcess> StartMapper() {
    auto client = ChildProcess::Start(
        {"tests/fault/map_client", worker_address(), "toy", Path("go")}, Path("mapper.log"));
    EXPECT_OK(client.status());
    return client.ok() ? *std::move(client) : nullptr;
  }
  // The next line that it prints.
  static std::string NextLine(ChildProcess* client) {
    std::vector<std::string> lines;
    EXPECT_TRUE(Eventually([&] {
      if (lines.empty()) lines = client->ReadLines();
      return !lines.empty() || !client->running();
    }));
    return lines.empty() ? "" : lines[0];
  }
  void ExpectTrainingWentOn() {
    StepOnce();
    ExpectTrainersSee();
    EXPECT_FALSE(absl::StrContains(ReadFile(Path("worker.log")), " failed: ")) << "an epoch ended";
  }
  // Nobody ever held a version of this job, so no executor can have waited for it.
  void ExpectNothingWasEverHeld() {
    const Mapping group = MapRegionOf(worker_->pid(), "toy/group");
    ASSERT_TRUE(group.valid());
    for (const RankRecord& rank : reinterpret_cast<const GroupPage*>(group.data())->ranks) {
      EXPECT_EQ(rank.hold.held.load(), 0);
      EXPECT_EQ(rank.hold.changes.value.load(), 0u);
    }
  }
  absl::StatusOr<std::unique_ptr<LiveMap>> Open() {
    LiveReaderOptions options;
    options.worker_addresses = {worker_address()};
    LiveQuery query;
    query.job_id = "toy";
    query.include = {"small.w"};
    return LiveMap::Open(options, query);
  }
  static std::vector<float> ValuesOf(const LiveMap& map) {
    std::vector<float> values;
    for (const absl::string_view span : map.entries()[0].spans) {
      const size_t before = values.size();
      values.resize(before + span.size() / sizeof(float));
      memcpy(values.data() + before, span.data(), span.size());
    }
    return values;
  }

  std::map<int64_t, std::vector<float>> small_at_;  // By step.
};

TEST_F(LiveMapKillTest, ClientsThatAreKilledLeaveNothingAndOthersTakeTheirPlace) {
  constexpr int kRounds = 4;
  ASSERT_NO_FATAL_FAILURE(Start());
  const int pid = worker_->pid();
  const auto count_memory = [pid] {
    int count = 0;
    for (const auto& [fd, name] : DescriptorsOf(pid)) count += absl::StrContains(name, "/memfd:");
    for (const std::string& name : MappingsOf(pid)) count += absl::StrContains(name, "/memfd:");
    return count;
  };
  const int memory = count_memory(), threads = NumThreads(pid);
  const size_t descriptors = DescriptorsOf(pid).size();
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<ChildProcess>> clients;
    for (int i = 0; i < kAtOnce; ++i) {
      clients.push_back(StartMapper());
      ASSERT_NE(clients.back(), nullptr);
    }
    for (const auto& client : clients)
      ASSERT_EQ(NextLine(client.get()), absl::StrCat("mapped ", steps_));
    ASSERT_NO_FATAL_FAILURE(StepOnce());
    for (const auto& client : clients) {
      ASSERT_TRUE(client->running());
      client->Kill(SIGKILL);
    }
    for (const auto& client : clients) EXPECT_EQ(client->Wait(), 128 + SIGKILL);
  }
  EXPECT_TRUE(Eventually([&] { return count_memory() == memory; })) << "of the job's regions";
  // gRPC keeps some of its own, far fewer than there were clients.
  EXPECT_TRUE(Eventually([&] { return DescriptorsOf(pid).size() <= descriptors + kAtOnce; }));
  EXPECT_TRUE(Eventually([&] { return NumThreads(pid) <= threads + 2 * kAtOnce; }));
  ExpectNothingWasEverHeld();
  ExpectTrainingWentOn();
}

TEST_F(LiveMapKillTest, ClientThatHangsDelaysNobodyAndLearnsThatWhatItReadIsVoid) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto hangs = StartMapper(), kept = StartMapper();
  ASSERT_NE(hangs, nullptr);
  ASSERT_EQ(NextLine(hangs.get()), "mapped 1");
  hangs->Kill(SIGSTOP);
  ASSERT_EQ(NextLine(kept.get()), "mapped 1");
  for (int i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(StepOnce());
  ExpectNothingWasEverHeld();
  std::ofstream(Path("go")) << "go";
  hangs->Kill(SIGCONT);
  EXPECT_EQ(NextLine(hangs.get()), "void");
  EXPECT_EQ(NextLine(kept.get()), "void");
  // One that comes where nobody trains.
  const auto last = StartMapper();
  ASSERT_NE(last, nullptr);
  std::vector<std::string> lines;
  ASSERT_TRUE(Eventually([&] {
    for (std::string& line : last->ReadLines()) lines.push_back(std::move(line));
    return lines.size() == 2 || !last->running();
  }));
  EXPECT_EQ(lines, (std::vector<std::string>{"mapped 6", "true"}));
  ExpectTrainingWentOn();
}

TEST_F(LiveMapKillTest, ExecutorsThatAreKilledBetweenStepsMakeNothingTrueThatIsNot) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK_AND_ASSIGN(const auto map, Open());
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    const int64_t step = map->version().committed_step;
    EXPECT_EQ(step, steps_);
    const std::vector<float> read = ValuesOf(*map);
    EXPECT_TRUE(map->Validate());
    EXPECT_EQ(read, small_at_.at(step));
    const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
    const auto victim = executors.find(absl::StrCat("toy/", i % 2));
    ASSERT_NE(victim, executors.end());
    ASSERT_EQ(kill(victim->second, SIGKILL), 0);
    // The version after it is made by an executor that follows; this one stands, and shows it.
    ASSERT_NO_FATAL_FAILURE(StepOnce());
    EXPECT_EQ(ValuesOf(*map), read);
    EXPECT_TRUE(map->Validate());
    ASSERT_NO_FATAL_FAILURE(StepOnce());
    EXPECT_FALSE(map->Validate());
    ASSERT_OK(map->Refresh());
  }
  ExpectTrainersSee();
  ExpectNothingWasEverHeld();
}

// --- Executors that are killed while they write ---

struct Place {
  enum What { kStep, kWrite, kPut };
  std::string point;
  What what;
  int nth;  // Of each executor: where it stops.
  bool optimizer_in_backward = false;
};

class LiveMapKillPointTest : public LiveMapKillTest, public testing::WithParamInterface<Place> {
 protected:
  void TearDown() override {
    KillExecutors();
    if (stepping_.joinable()) stepping_.join();
    LiveMapKillTest::TearDown();
  }
  // Puts are asked for by clients.
  std::vector<absl::Status> Change() {
    if (GetParam().what != Place::kWrite) return TryStep();
    const auto written = static_cast<float>(++num_writes_);
    return team_->Run([written](Session* session) {
      return session->WriteParameters({1}, [written](int, int, absl::Span<float> values) {
        std::fill(values.begin(), values.end(), written);
      });
    });
  }
  void ChangeUntilTheyStop() {
    stepping_ = std::thread([this] { (void)Change(); });
  }
  // Until all executors have started to write `version`, and cannot continue.
  void AwaitWriting(int64_t version) {
    const Mapping group = MapRegionOf(worker_->pid(), "toy/group");
    ASSERT_TRUE(group.valid());
    const auto* page = reinterpret_cast<const GroupPage*>(group.data());
    const bool is_decided = GetParam().point.find(".before-vote") == std::string::npos &&
                            !GetParam().optimizer_in_backward;
    ASSERT_TRUE(Eventually([&] {
      for (int rank = 0; rank < world_size_; ++rank)
        if (page->ranks[rank].hold.writing.load() != version) return false;
      return !is_decided || page->decided_step.load() == version;
    }));
  }
  void KillExecutors() {
    if (worker_ == nullptr) return;
    for (const auto& [label, pid] : ExecutorsOf(worker_->pid())) kill(pid, SIGKILL);
  }

  std::thread stepping_;
  int num_writes_ = 0;
};

TEST_P(LiveMapKillPointTest, VersionBeforeTheirsIsTrueAndTheOneBeforeThatIsNot) {
  const Place& place = GetParam();
  optimizer_in_backward_ = place.optimizer_in_backward;
  ASSERT_NO_FATAL_FAILURE(Start(absl::StrCat(place.point, "=hold@", place.nth)));
  const std::string path = Path("put.safetensors");
  if (place.what == Place::kPut) PutBig(path, WriteBig(path, "first"));
  ASSERT_OK_AND_ASSIGN(const auto before, Open());
  const int64_t version = before->version().committed_step;
  Client put;
  if (place.what == Place::kPut) {
    (void)WriteBig(path, "second");
    put = StartClient({"put", "--job", "toy", "--from", path, "--wait", "24h"});
    ASSERT_TRUE(Eventually([this] { return CountHolders() == world_size_; }));
  } else if (place.what == Place::kStep) {
    ASSERT_NO_FATAL_FAILURE(StepOnce());
  } else {
    for (const absl::Status& status : Change()) ASSERT_OK(status);
  }
  EXPECT_TRUE(before->Validate());
  ChangeUntilTheyStop();
  ASSERT_NO_FATAL_FAILURE(AwaitWriting(version + 2));
  EXPECT_FALSE(before->Validate());
  ASSERT_OK_AND_ASSIGN(const auto after, Open());
  EXPECT_EQ(after->version().committed_step, version + 1);
  const std::vector<float> read = ValuesOf(*after);
  if (place.what == Place::kStep) {
    EXPECT_EQ(read, small_at_.at(version + 1));
  }
  EXPECT_TRUE(after->Validate());

  KillExecutors();
  stepping_.join();
  EXPECT_FALSE(before->Validate());
  EXPECT_TRUE(after->Validate());
  EXPECT_EQ(ValuesOf(*after), read);

  // Once those that follow have done it.
  ASSERT_OK(team_->RunAll([](Session* session) { return session->Recover(); }));
  if (place.what == Place::kPut) {
    EXPECT_EQ(Await(std::move(put), /*trains=*/true).exit_code, 0);
  } else {
    if (place.what == Place::kStep) {
      ASSERT_NO_FATAL_FAILURE(StepOnce());
    }
    EXPECT_TRUE(after->Validate());
    EXPECT_EQ(ValuesOf(*after), read);
  }
  EXPECT_FALSE(before->Validate());
  ASSERT_OK(before->Refresh());
  EXPECT_GE(before->version().committed_step, version + 2);
  LiveReaderOptions options;
  options.coordinator_address = coordinator_address();
  ASSERT_OK_AND_ASSIGN(const auto reader, LiveReader::Open(options));
  LiveQuery query;
  query.job_id = "toy";
  query.include = {"small.w"};
  std::vector<float> fetched;
  ASSERT_OK_AND_ASSIGN(
      const LiveVersion of_fetched, reader->Read(query, [&](const LiveEntry& entry) {
        fetched.resize(entry.size_bytes / sizeof(float));
        return absl::MakeSpan(reinterpret_cast<char*>(fetched.data()), entry.size_bytes);
      }));
  EXPECT_EQ(before->version().committed_step, of_fetched.committed_step);
  EXPECT_EQ(ValuesOf(*before), fetched);
  EXPECT_TRUE(before->Validate());
  if (place.what == Place::kStep) {
    EXPECT_EQ(fetched, small_at_.at(version + 2));
  }
  if (place.what == Place::kWrite) {
    EXPECT_EQ(fetched, std::vector<float>(fetched.size(), 2));
  }
}

INSTANTIATE_TEST_SUITE_P(Points, LiveMapKillPointTest,
                         testing::Values(Place{"step.after-decision", Place::kStep, 3},
                                         Place{"step.before-publish", Place::kStep, 3},
                                         Place{"update.in-backward", Place::kStep, 3, true},
                                         Place{"write.before-publish", Place::kWrite, 2},
                                         Place{"put.before-vote", Place::kPut, 2}),
                         [](const auto& info) {
                           std::string name = info.param.point;
                           name.erase(std::remove_if(name.begin(), name.end(),
                                                     [](char c) { return !isalpha(c); }),
                                      name.end());
                           return name;
                         });

TEST_F(LiveMapKillTest, WhatWasMappedOfAWorkerThatIsKilledStaysAsItWas) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK_AND_ASSIGN(const auto map, Open());
  KillWhole(worker_.get());
  EXPECT_EQ(ValuesOf(*map), small_at_.at(1));
  EXPECT_TRUE(map->Validate());
  EXPECT_TRUE(Eventually([&] { return absl::IsUnavailable(map->Refresh()); }));
  EXPECT_EQ(map->version().committed_step, 1);
}

TEST_F(LiveMapKillTest, CoordinatorThatIsKilledTakesNothingFromAMappingClient) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK_AND_ASSIGN(const auto map, Open());
  coordinator_->Kill(SIGKILL);
  EXPECT_EQ(coordinator_->Wait(), 128 + SIGKILL);
  ASSERT_NO_FATAL_FAILURE(StepOnce());  // Steps continue without it.
  ASSERT_OK(map->Refresh());
  EXPECT_EQ(ValuesOf(*map), small_at_.at(2));
  EXPECT_TRUE(map->Validate());
  ASSERT_OK_AND_ASSIGN(const auto another, Open());
  EXPECT_EQ(another->version().committed_step, 2);
  EXPECT_EQ(ValuesOf(*another), small_at_.at(2));
  StartCoordinator();
  ExpectTrainingWentOn();
  ASSERT_OK(map->Refresh());
  EXPECT_EQ(ValuesOf(*map), small_at_.at(3));
}

}  // namespace
}  // namespace tessera
