// Values that clients set in jobs that train: through a real coordinator, workers and executors
// (threads), with trainers that go on meanwhile.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/cpp/checkpoint.h"
#include "client/cpp/local_cluster.h"
#include "client/cpp/local_shards.h"
#include "client/cpp/session_buffers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "tests/testing/region_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/device/host/kernels.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::LiveReading;
using testing_support::MapRegionOf;
using testing_support::PutOutcome;
using testing_support::PutValue;
using testing_support::PutWhileTraining;
using testing_support::ReadAll;
using testing_support::ReadLive;
using testing_support::ReadStored;
using testing_support::RunTessera;
using testing_support::StoredValues;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::VersionOf;
using testing_support::WritePutFile;

struct Case {
  std::string name;
  int num_workers = 1, num_devices = 1;  // Of each.
  int world_size = 1;
  Strategy strategy = Strategy::kFullShard;
  int group_size = 0;
  bool optimizer_in_backward = false;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
};

std::unique_ptr<LocalCluster> StartCluster(const Case& c) {
  LocalCluster::Options options;
  options.num_workers = c.num_workers;
  options.num_devices = c.num_devices;
  auto cluster = LocalCluster::Start(options);
  EXPECT_OK(cluster);
  return *std::move(cluster);
}

absl::StatusOr<TrainerTeam> OpenTeam(const LocalCluster& cluster, const Case& c) {
  SessionOptions options = ToyOptions(cluster, "toy", c.world_size);
  options.model = ToyModel(3, /*with_frozen=*/true);
  options.config.strategy = c.strategy;
  options.config.shard_group_size = c.group_size;
  options.config.optimizer = c.optimizer;
  if (c.optimizer == OptimizerKind::kSgd) options.config.groups[0].momentum = 0.9;
  options.config.optimizer_in_backward = c.optimizer_in_backward;
  options.config.max_gradient_norm = c.optimizer_in_backward ? 0.0 : 0.5;
  std::vector<std::string> workers;
  for (int rank = 0; rank < c.world_size; ++rank)
    workers.push_back(cluster.worker_address(rank / c.num_devices));
  return TrainerTeam::Open(options, workers);
}

std::vector<TensorSpec> AllParameters(const ModelSpec& model) {
  std::vector<TensorSpec> all;
  for (const UnitSpec& unit : model.units)
    all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

// Descriptors of files without a name that this process has in /tmp.
int CountSpoolFiles() {
  int count = 0;
  for (const auto& [fd, what] : DescriptorsOf(getpid()))
    count += absl::StartsWith(what, "/tmp/#") && absl::EndsWith(what, "(deleted)") ? 1 : 0;
  return count;
}

class LivePutTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/put-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  PutOutcome Put(const LocalCluster& cluster, TrainerTeam* team, std::vector<std::string> args) {
    return PutWhileTraining(cluster.coordinator_address(), "toy", std::move(args),
                            Path("now.safetensors"),
                            [&] { EXPECT_OK(team->TrainTo(team->session(0)->next_step())); });
  }
  LiveReading Read(const LocalCluster& cluster) {
    LiveReading now = ReadLive(cluster.coordinator_address(), "toy", Path("now.safetensors"));
    EXPECT_TRUE(now.ok) << now.error;
    return now;
  }

  std::string folder_;
};

// Sets what is PutValue's, as a trainer does.
absl::Status WriteAsTrainer(Session* session, const std::vector<int>& units) {
  return session->WriteParameters(units, [&](int unit, int parameter, absl::Span<float> values) {
    const std::string& name = session->layout().units[unit].flat.parameters()[parameter].spec.name;
    for (size_t i = 0; i < values.size(); ++i) values[i] = PutValue(name, i);
  });
}

TEST_P(LivePutTest, IsOneVersionOnAllRanksAndTrainingIsThatOfTrainersWhoWroteTheSame) {
  StoredValues after, end;
  int64_t step = 0;
  {
    const auto cluster = StartCluster(GetParam());
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
    ASSERT_OK(team.TrainTo(2));
    WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
    const PutOutcome put = Put(*cluster, &team, {"--from", Path("put.safetensors"), "--json"});
    ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
    ASSERT_TRUE(put.applied);
    const auto json = nlohmann::json::parse(put.result.out);
    step = json["step"];
    EXPECT_EQ(json["committed_step"], put.after.committed_step);
    EXPECT_EQ(put.after.committed_step, step + 1);
    EXPECT_EQ(put.after.step, step);
    after = put.after.values;
    for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
      EXPECT_EQ(after.at(name), tensor) << name;
    for (int rank = 0; rank < GetParam().world_size; ++rank) {
      EXPECT_EQ(team.session(rank)->next_step(), step + 1);
      EXPECT_EQ(team.session(rank)->num_writes(), 0) << "no trainer wrote anything";
    }
    ASSERT_OK(team.TrainTo(step + 3));
    end = Read(*cluster).values;
  }
  const auto cluster = StartCluster(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
  ASSERT_OK(team.TrainTo(step));
  ASSERT_OK(team.RunAll([](Session* session) { return WriteAsTrainer(session, {0, 1, 2}); }));
  EXPECT_EQ(Read(*cluster).values, after);
  ASSERT_OK(team.TrainTo(step + 3));
  EXPECT_EQ(Read(*cluster).values, end);
}

TEST_P(LivePutTest, MomentsOfACheckpointComeWithTheirCounts) {
  const auto cluster = StartCluster(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
  ASSERT_OK(team.TrainTo(2));
  const std::string path = Path("saved");
  ASSERT_OK(team.RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));
  ASSERT_OK(team.TrainTo(5));
  const PutOutcome put = Put(*cluster, &team, {"--from", path, "--moments"});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  for (const auto& [name, tensor] : ReadStored(path))
    EXPECT_EQ(put.after.values.at(name), tensor) << name;
  EXPECT_EQ(team.session(0)->next_step(), put.after.step + 1) << "the trainers' steps go on";
  ASSERT_OK(team.TrainTo(put.after.step + 2));
}

TEST_P(LivePutTest, WhatIsNotNamedStaysAsTheStepLeftIt) {
  int64_t step = 0;
  StoredValues after;
  {
    const auto cluster = StartCluster(GetParam());
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
    ASSERT_OK(team.TrainTo(1));
    WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
    const std::string one = ToyModel(3, true).units[1].parameters[0].name;
    const PutOutcome put =
        Put(*cluster, &team, {"--from", Path("put.safetensors"), "--include", one});
    ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
    step = put.after.step;
    after = put.after.values;
    EXPECT_EQ(after.at(one), ReadStored(Path("put.safetensors")).at(one));
    after.erase(one);
  }
  const auto cluster = StartCluster(GetParam());
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, GetParam()));
  ASSERT_OK(team.TrainTo(step));
  StoredValues expected = Read(*cluster).values;
  expected.erase(ToyModel(3, true).units[1].parameters[0].name);
  EXPECT_EQ(after, expected);
}

INSTANTIATE_TEST_SUITE_P(Jobs, LivePutTest,
                         testing::Values(Case{"OneRank", 1, 1, 1}, Case{"ThreeRanks", 1, 3, 3},
                                         Case{"Sgd", 1, 2, 2, Strategy::kFullShard, 0, false,
                                              OptimizerKind::kSgd},
                                         Case{"NoShard", 1, 2, 2, Strategy::kNoShard},
                                         Case{"InBackward", 1, 2, 2, Strategy::kFullShard, 0, true},
                                         Case{"TwoWorkers", 2, 2, 3}, Case{"FourRanks", 1, 4, 4},
                                         Case{"Hybrid", 2, 2, 4, Strategy::kHybridShard, 2}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

using LivePutOfOneTest = LivePutTest;

// A model of all dtypes, with tied weights, whose trainers' steps change nothing.
class LivePutIdleTest : public LivePutTest {
 protected:
  void Start(DType compute_dtype = DType::kFp32) {
    cluster_ = StartCluster({"", 1, 2, 2});
    SessionOptions options = ToyOptions(*cluster_, "toy", 2);
    options.model = {{{"root", {{"a", {5}, DType::kFp32}, {"empty", {0}, DType::kFp32}}},
                      {"wide", {{"b", {7, 3}, DType::kFp64}}},
                      {"tied", {{"c", {9}, DType::kFp32}, {"too", {9}, DType::kFp32, true, "c"}}}}};
    options.model.buffers = {{"stats", StoredDType::kF32, {4}}};
    options.config.compute_dtype = compute_dtype;
    auto team = TrainerTeam::Open(options);
    ASSERT_OK(team);
    team_ = std::make_unique<TrainerTeam>(*std::move(team));
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->Initialize(
          [](int, int, Values values) { memset(values.data(), 0, values.size_bytes()); });
    }));
    initial_ = Read(*cluster_).values;
  }
  PutOutcome PutIdle(std::vector<std::string> args) {
    return PutWhileTraining(cluster_->coordinator_address(), "toy", std::move(args),
                            Path("now.safetensors"), [this] { Step(); });
  }
  void Step() {
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->RunStep([&] { return session->Step().status(); });
    }));
  }
  // The put fails with this, and nothing changes.
  void ExpectRefusal(std::vector<std::string> args, const std::string& code,
                     const std::string& text) {
    const PutOutcome put = PutIdle(std::move(args));
    EXPECT_NE(put.result.exit_code, 0);
    EXPECT_FALSE(put.applied);
    EXPECT_THAT(put.result.err, AllOf(HasSubstr(code), HasSubstr(text)));
    EXPECT_EQ(Read(*cluster_).values, initial_);
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
  StoredValues initial_;
};

TEST_F(LivePutIdleTest, ElementsAreRoundedOrWidenedToWhatTheJobKeeps) {
  Start();
  const std::string path = Path("put.safetensors");
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64}) {
    WritePutFile(
        path, {{"a", {5}, dtype}, {"empty", {0}, dtype}, {"b", {7, 3}, dtype}, {"c", {9}, dtype}});
    const PutOutcome put = PutIdle({"--from", path});
    ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
    const auto expected = [&](const std::string& name, int64_t i) {
      float value = PutValue(name, i);
      uint16_t half = 0;
      if (IsHalf(dtype)) {
        host::CastFp32ToHalf(dtype, &value, &half, 1);
        host::CastHalfToFp32(dtype, &half, &value, 1);
      }
      return value;
    };
    const auto* a = reinterpret_cast<const float*>(put.after.values.at("a").second.data());
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(a[i], expected("a", i));
    const auto* b = reinterpret_cast<const double*>(put.after.values.at("b").second.data());
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(b[i], static_cast<double>(expected("b", i)));
  }
}

TEST_F(LivePutIdleTest, TrainersOfALowPrecisionSeeItRounded) {
  cluster_ = StartCluster({"", 1, 2, 2});
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  options.config.compute_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  team_ = std::make_unique<TrainerTeam>(std::move(team));
  ASSERT_OK(team_->RunAll(testing_support::InitializeToy));
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3)));
  const PutOutcome put = PutIdle({"--from", Path("put.safetensors")});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
    EXPECT_EQ(put.after.values.at(name), tensor) << "the master copy of " << name;
  ASSERT_OK(team_->RunAll([](Session* session) -> absl::Status {
    for (int unit = 0; unit < session->num_units(); ++unit) {
      RETURN_IF_ERROR(session->Unshard(unit));
      const auto& parameters = session->layout().units[unit].flat.parameters();
      for (size_t p = 0; p < parameters.size(); ++p) {
        const auto* seen = reinterpret_cast<const uint16_t*>(session->parameter(unit, p));
        for (int64_t i = 0; i < parameters[p].numel; ++i) {
          const float value = PutValue(parameters[p].spec.name, i);
          uint16_t rounded = 0;
          host::CastFp32ToHalf(DType::kBf16, &value, &rounded, 1);
          EXPECT_EQ(seen[i], rounded) << parameters[p].spec.name << " " << i;
        }
      }
      RETURN_IF_ERROR(session->Reshard(unit));
    }
    return absl::OkStatus();
  }));
}

TEST_F(LivePutIdleTest, TiedWeightsAreSetByAnyOfTheirNamesAndNotToTwoValues) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"c", {9}}, {"too", {9}}});
  ExpectRefusal({"--from", path}, "INVALID_ARGUMENT",
                "tensor 'too': it is one parameter with 'c', and has other values");
  WritePutFile(path, {{"c", {9}}, {"too", {9}, DType::kBf16}});
  ExpectRefusal({"--from", path}, "INVALID_ARGUMENT", "are one parameter, and are given in two");
  WritePutFile(path, {{"c", {9}}, {"too", {9}}}, {{"c", "too"}});
  const PutOutcome both = PutIdle({"--from", path});
  ASSERT_EQ(both.result.exit_code, 0) << both.result.err;
  EXPECT_THAT(both.result.out, HasSubstr("has 1 tensors"));
  EXPECT_EQ(both.after.values.at("c"), ReadStored(path).at("too"));
  WritePutFile(path, {{"too", {9}}}, {{"too", "another"}});
  const PutOutcome alias = PutIdle({"--from", path});
  ASSERT_EQ(alias.result.exit_code, 0) << alias.result.err;
  EXPECT_EQ(alias.after.values.at("c"), ReadStored(path).at("too"));
}

TEST_F(LivePutIdleTest, WhatDoesNotFitIsRefusedByNameAndChangesNothing) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"a", {5}}, {"x", {2}}});
  ExpectRefusal({"--from", path}, "NOT_FOUND", "the job has no tensor 'x'");
  WritePutFile(path, {{"a", {5}}, {"b", {3, 7}}});
  ExpectRefusal({"--from", path}, "INVALID_ARGUMENT",
                "parameter 'b': its shape is [7, 3], the put gives [3, 7]");
  ExpectRefusal({"--from", path, "--include", "none"}, "NOT_FOUND", "nothing there is to be set");
  ExpectRefusal({"--from", path, "--exclude", "b", "--moments"}, "NOT_FOUND", "no moments");
  ExpectRefusal({"--from", path, "--wait", "soon"}, "INVALID_ARGUMENT", "--wait soon");
  ExpectRefusal({"--from", Path("none")}, "NOT_FOUND", "none");
  const PutOutcome rest = PutIdle({"--from", path, "--exclude", "b"});
  EXPECT_EQ(rest.result.exit_code, 0) << rest.result.err;
}

TEST_F(LivePutIdleTest, StoredNamesAreRenamedAsLoadsDoAndTwoOfOneNameAreRefused) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"old.a", {5}}, {"old.b", {7, 3}, DType::kFp64}, {"other", {9}}});
  ExpectRefusal({"--from", path}, "NOT_FOUND", "the job has no tensor 'old.a'");
  ExpectRefusal({"--from", path, "--rename", "old.=", "--rename", "other=x"}, "NOT_FOUND",
                "the job has no tensor 'x', which 'other' is to be");
  ExpectRefusal({"--from", path, "--rename", "old.=", "--rename", "other=a"}, "INVALID_ARGUMENT",
                "tensors 'old.a' and 'other' are both 'a' in the job");
  ExpectRefusal({"--from", path, "--rename", "old."}, "INVALID_ARGUMENT", "is not OLD=NEW");
  // The first that fits counts; patterns are of names in the job.
  const PutOutcome put = PutIdle({"--from", path, "--rename", "other=too", "--rename",
                                  "old.=", "--rename", "old.a=c", "--exclude", "b"});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  const StoredValues stored = ReadStored(path);
  EXPECT_EQ(put.after.values.at("a"), stored.at("old.a"));
  EXPECT_EQ(put.after.values.at("c"), stored.at("other"));
  EXPECT_EQ(put.after.values.at("b"), initial_.at("b"));
}

TEST_F(LivePutIdleTest, StepThatIsSkippedForANaNTakesItToo) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"a", {5}}, {"stats", {4}}});
  const PutOutcome put = PutWhileTraining(
      cluster_->coordinator_address(), "toy", {"--from", path}, Path("now.safetensors"), [this] {
        ASSERT_OK(team_->RunAll([](Session* session) -> absl::Status {
          RETURN_IF_ERROR(session->Unshard(0));
          RETURN_IF_ERROR(session->Reshard(0));
          RETURN_IF_ERROR(session->AddGradient(0, 0, std::vector<float>(5, std::nanf(""))));
          RETURN_IF_ERROR(session->Reduce(0));
          StepOptions options;
          options.skip_non_finite = true;
          ASSIGN_OR_RETURN(const StepResult result, session->Step(options));
          EXPECT_TRUE(result.skipped);
          return absl::OkStatus();
        }));
      });
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  ASSERT_TRUE(put.applied);
  EXPECT_EQ(put.after.values.at("a"), ReadStored(path).at("a"));
  EXPECT_EQ(put.after.values.at("c"), initial_.at("c"));
  EXPECT_EQ(put.after.step, 0) << "no step was taken";
  EXPECT_EQ(put.after.values.at("stats"), ReadStored(path).at("stats"));
  for (int rank = 0; rank < 2; ++rank) {
    const SessionBuffers buffers(team_->session(rank));
    EXPECT_TRUE(buffers.IsGiven(0));
    EXPECT_TRUE(buffers.Get(0) == ReadStored(path).at("stats").second);
  }
}

TEST_F(LivePutIdleTest, WithoutAStepInTimeNothingIsChanged) {
  Start();
  WritePutFile(Path("put.safetensors"), {{"a", {5}}});
  const CliResult put =
      RunTessera(cluster_->coordinator_address(),
                 {"put", "--job", "toy", "--from", Path("put.safetensors"), "--wait", "50ms"});
  EXPECT_THAT(put.err, AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("took no step within 50ms"),
                             HasSubstr("nothing was changed")));
  for (int i = 0; i < 3; ++i) Step();
  const LiveReading now = Read(*cluster_);
  EXPECT_EQ(now.values, initial_);
  EXPECT_EQ(now.committed_step, now.step);
}

TEST_F(LivePutOfOneTest, JobWithoutValuesIsRefused) {
  const auto cluster = StartCluster({"", 1, 1, 1});
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
  const std::vector<std::string> args = {"put", "--job", "toy", "--from", Path("put.safetensors")};
  EXPECT_THAT(RunTessera(cluster->coordinator_address(), args).err, HasSubstr("NOT_FOUND"));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, {"", 1, 1, 1}));
  EXPECT_THAT(RunTessera(cluster->coordinator_address(), args).err,
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("the job has no values yet")));
}

// The version that a put makes takes the place of the one before the step that it follows.
TEST_F(LivePutOfOneTest, MomentsAreRenamedWithTheirParameters) {
  const Case c = {"", 1, 4, 2};
  const auto cluster = StartCluster(c);
  SessionOptions options = ToyOptions(*cluster, "before", 1);
  options.model = ToyModel(3);
  for (UnitSpec& unit : options.model.units) {
    for (TensorSpec& parameter : unit.parameters) parameter.name = "old." + parameter.name;
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam before, TrainerTeam::Open(options));
  ASSERT_OK(before.TrainTo(3));
  const std::string path = Path("saved");
  ASSERT_OK(before.RunAll([&](Session* session) { return SaveCheckpoint(session, path); }));

  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
  ASSERT_OK(team.TrainTo(1));
  const PutOutcome put = Put(*cluster, &team, {"--from", path, "--moments", "--rename", "old.="});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  int moments = 0;
  for (const auto& [name, value] : ReadStored(path)) {
    const bool is_state = absl::StartsWith(name, "state.old.");
    const std::string in_job = is_state ? absl::StrCat("state.", name.substr(10)) : name.substr(4);
    moments += is_state ? 1 : 0;
    ASSERT_EQ(put.after.values.count(in_job), 1u) << in_job;
    EXPECT_EQ(put.after.values.at(in_job), value) << name;
  }
  EXPECT_GE(moments, 6);
}

TEST_F(LivePutOfOneTest, WaitsForAReaderOfWhatItWouldOverwrite) {
  const Case c = {"", 1, 2, 2};
  const auto cluster = StartCluster(c);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
  ASSERT_OK(team.TrainTo(3));
  const Mapping group = MapRegionOf(getpid(), "toy/group");
  const Mapping state = MapRegionOf(getpid(), "toy/1/state");
  ASSERT_TRUE(group.valid() && state.valid());
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
  CliResult result;
  std::thread putter([&] {
    result = RunTessera(cluster->coordinator_address(),
                        {"put", "--job", "toy", "--from", Path("put.safetensors")});
  });
  // The worker's file, and that of each rank.
  EXPECT_TRUE(Eventually([] { return CountSpoolFiles() == 3; }));
  RankRecord& record = reinterpret_cast<GroupPage*>(group.data())->ranks[1];
  ASSERT_OK_AND_ASSIGN(const int64_t held, HoldNewest(&record.hold, record.applied_step));
  EXPECT_EQ(held, 3);
  const std::string before = VersionOf(state, held);
  std::thread trainer([&] { EXPECT_OK(team.TrainTo(4)); });
  EXPECT_TRUE(Eventually([&] { return record.hold.changes.sleepers.load() > 0; }));
  EXPECT_EQ(VersionOf(state, held), before);
  EXPECT_TRUE(Release(&record.hold, held));
  trainer.join();
  // It may have been given to a rank too late for this step.
  ASSERT_OK(team.TrainTo(5));
  putter.join();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(VersionOf(state, held), before);
  EXPECT_TRUE(Eventually([] { return CountSpoolFiles() == 0; })) << "nothing is left behind";
}

// Trainers whose own optimizers write their shards have the values before their next update.
TEST_F(LivePutOfOneTest, OptimizersOfTrainersGoOnFromTheValuesThatWerePut) {
  const Case c = {"", 1, 2, 2};
  const auto cluster = StartCluster(c);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster, c));
  ASSERT_OK(team.TrainTo(1));
  std::vector<std::unique_ptr<LocalShards>> shards(2);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(shards[session->rank()], LocalShards::Open(session));
    return absl::OkStatus();
  }));
  // Each writes what it has, as an optimizer without gradients does.
  const auto step = [&] {
    EXPECT_OK(team.RunAll([&](Session* session) {
      return session->RunStep([&]() -> absl::Status {
        RETURN_IF_ERROR(shards[session->rank()]->Begin().status());
        return shards[session->rank()]->Commit();
      });
    }));
  };
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3, true)));
  const PutOutcome put =
      PutWhileTraining(cluster->coordinator_address(), "toy", {"--from", Path("put.safetensors")},
                       Path("now.safetensors"), step);
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  step();
  const LiveReading now = Read(*cluster);
  EXPECT_EQ(now.committed_step, put.after.committed_step + 1);
  for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
    EXPECT_EQ(now.values.at(name), tensor) << name;
}

}  // namespace
}  // namespace tessera
