// Checkpoints that are requested by gRPC and command line while a job trains: through a real
// coordinator, worker and executors (threads), with trainers that continue meanwhile.
#include <atomic>
#include <filesystem>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "client/cli/cli.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tessera/local_shards.h"
#include "tests/integration/save_request_fixture.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::CliResult;
using testing_support::Eventually;
using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ReadStored;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

TEST_F(SaveRequestTest, CommandGetsACheckpointOfOneStepWhichAnotherWorldLoadsToTheBit) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
  ASSERT_OK(team.TrainTo(1));
  CliResult saved;
  std::atomic<bool> over{false};
  std::thread command([&] {
    saved = Cli({"save", "--job", "toy", "--to", Path("c"), "--wait", "--json"});
    over.store(true);
  });
  int64_t trained = 1;
  while (!over.load() && trained < kMostSteps) ASSERT_OK(team.TrainTo(++trained));
  command.join();
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const auto json = nlohmann::json::parse(saved.out);
  EXPECT_EQ(json["state"], "SAVED");
  EXPECT_EQ(json["path"], Path("c"));
  const int64_t step = json["step"];
  EXPECT_GT(step, 1);
  EXPECT_LE(step, trained);
  EXPECT_EQ(ReadStored(Path("c")), Undisturbed(step));

  ASSERT_OK_AND_ASSIGN(TrainerTeam other, OpenTeam("other", 2));
  ASSERT_OK(other.RunAll([&](Session* session) -> absl::Status {
    LoadCheckpointOptions options;
    options.buffers.emplace_back("buffer", DType::kFp32, std::vector<int64_t>{1}, "");
    ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(session, Path("c"), options));
    EXPECT_EQ(loaded.step, step);
    EXPECT_EQ(session->next_step(), step + 1);
    EXPECT_EQ(loaded.trainer_state, ContentsOf(session->rank(), step).trainer_state);
    EXPECT_EQ(loaded.buffers[0].values, "abcd");
    return SaveCheckpoint(session, Path("again"), ContentsOf(session->rank(), step));
  }));
  EXPECT_EQ(ReadStored(Path("again")), ReadStored(Path("c")));
}

TEST_F(SaveRequestTest, AskingChangesNoBitOfTheTraining) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
  ASSERT_OK(team.TrainTo(1));
  for (const char* name : {"a", "b"}) {
    ASSERT_OK_AND_ASSIGN(const int64_t number, Ask(Path(name)));
    EXPECT_EQ(TrainUntilEnded(&team, number).code(), 0);
  }
  const int64_t step = team.session(0)->next_step() - 1;
  ASSERT_OK(team.RunAll([&](Session* session) {
    return SaveCheckpoint(session, Path("last"), ContentsOf(session->rank(), step));
  }));
  EXPECT_EQ(ReadStored(Path("last")), Undisturbed(step));
}

TEST_F(SaveRequestTest, TrainersThatDoNotHandleItSaveWithoutStateOfTheirOwn) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  ASSERT_OK_AND_ASSIGN(const int64_t number, Ask(Path("c")));
  const v1::Save save = TrainUntilEnded(&team, number);
  EXPECT_EQ(save.code(), 0) << save.message();
  ASSERT_OK_AND_ASSIGN(TrainerTeam other, OpenTeam("other", 1));
  ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, LoadCheckpoint(other.session(0), Path("c")));
  EXPECT_EQ(loaded.step, save.step());
  EXPECT_EQ(loaded.trainer_state, "");
}

TEST_F(SaveRequestTest, IsMadeAfterStepsOfTrainersOwnOptimizersToo) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  std::vector<std::unique_ptr<LocalShards>> shards(kWorldSize);
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    ASSIGN_OR_RETURN(shards[session->rank()], LocalShards::Open(session));
    return absl::OkStatus();
  }));
  const auto own_step = [&](Session* session) -> absl::Status {
    LocalShards* own = shards[session->rank()].get();
    RETURN_IF_ERROR(own->Begin().status());
    for (size_t part = 0; part < own->parts().size(); ++part) {
      for (float& value : own->values(part).as<float>()) value += 0.5f;
    }
    return own->Commit();
  };
  ASSERT_OK_AND_ASSIGN(const int64_t number, Ask(Path("c")));
  int64_t steps = 0;
  while (Get(number).state() != v1::SAVE_STATE_ENDED && ++steps < kMostSteps) {
    ASSERT_OK(team.RunAll(
        [&](Session* session) { return session->RunStep([&] { return own_step(session); }); }));
  }
  const v1::Save save = Get(number);
  EXPECT_EQ(save.code(), 0) << save.message();
  ASSERT_OK_AND_ASSIGN(TrainerTeam other, OpenTeam("other", 1));
  ASSERT_OK(LoadCheckpoint(other.session(0), Path("c")).status());
  EXPECT_EQ(other.session(0)->next_step(), save.step() + 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, ReadAll(other.session(0)));
  EXPECT_EQ(values[0], testing_support::InitialValue(0, 0, 0) + 0.5f * save.step());
}

TEST_F(SaveRequestTest, RanksOfSeveralWorkersMakeItOfOneStep) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kHybridShard}) {
    cluster_.reset();
    ASSERT_NO_FATAL_FAILURE(StartCluster(2, 2));
    SessionOptions options = ToyOptions(*cluster_, "toy", 4);
    options.config.strategy = strategy;
    if (strategy == Strategy::kHybridShard) options.config.shard_group_size = 2;
    ASSERT_OK_AND_ASSIGN(
        TrainerTeam team,
        TrainerTeam::Open(options, {cluster_->worker_address(0), cluster_->worker_address(0),
                                    cluster_->worker_address(1), cluster_->worker_address(1)}));
    ASSERT_OK_AND_ASSIGN(const int64_t number, Ask(Path("c")));
    const v1::Save save = TrainUntilEnded(&team, number);
    EXPECT_EQ(save.code(), 0) << save.message();
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
    EXPECT_THAT(verified.damages, IsEmpty());
    EXPECT_EQ(verified.manifest.step, save.step());
    ASSERT_OK_AND_ASSIGN(const v1::ListCheckpointsResponse saves, client_->List("toy"));
    EXPECT_EQ(saves.saves_size(), 1) << "both workers tell of it";
  }
}

TEST_F(SaveRequestTest, RequestsAreMadeOneAfterTheOtherAndTheNewestAreKept) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
  v1::SaveSpec spec;
  spec.set_keep_newest(2);
  std::vector<int64_t> numbers;
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_OK_AND_ASSIGN(const int64_t number, Ask(Path(name), spec));
    numbers.push_back(number);
  }
  EXPECT_THAT(Get(numbers[1]).waits_for(), HasSubstr("save 1"));
  EXPECT_EQ(TrainUntilEnded(&team, numbers[2]).code(), 0);
  EXPECT_LT(Get(numbers[0]).step(), Get(numbers[1]).step());
  EXPECT_LT(Get(numbers[1]).step(), Get(numbers[2]).step());
  // What was removed is in rank 0's report of the end; another rank's may have come before it.
  EXPECT_TRUE(Eventually([&] { return Get(numbers[0]).fate() == v1::SAVE_FATE_REMOVED; }));
  EXPECT_EQ(Get(numbers[1]).fate(), v1::SAVE_FATE_KEPT);
  EXPECT_FALSE(std::filesystem::exists(Path("a")));
  EXPECT_TRUE(std::filesystem::exists(Path("b")));
  ASSERT_OK_AND_ASSIGN(const int64_t again, Ask(Path("b")));
  EXPECT_EQ(TrainUntilEnded(&team, again).code(), 0);
  EXPECT_EQ(Get(numbers[1]).fate(), v1::SAVE_FATE_REPLACED);
}

TEST_F(SaveRequestTest, ErrorOrExceptionOfATrainersCodeIsTheSavesAndNotTheSteps) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  OnSaveRequest(team.session(1), [](int64_t) -> absl::StatusOr<CheckpointContents> {
    return absl::DataLossError("lost my place");
  });
  OnSaveRequest(team.session(2), [](int64_t) -> absl::StatusOr<CheckpointContents> {
    throw std::runtime_error("oh");
  });
  ASSERT_OK_AND_ASSIGN(const int64_t first, Ask(Path("a")));
  EXPECT_THAT(TrainUntilEnded(&team, first).message(),
              testing::AllOf(HasSubstr("rank 1"), HasSubstr("lost my place")));
  OnSaveRequest(team.session(1), [](int64_t) { return CheckpointContents(); });
  ASSERT_OK_AND_ASSIGN(const int64_t second, Ask(Path("a")));
  EXPECT_THAT(TrainUntilEnded(&team, second).message(),
              testing::AllOf(HasSubstr("rank 2"), HasSubstr("exception")));
  EXPECT_FALSE(std::filesystem::exists(Path("a")));
}

TEST_F(SaveRequestTest, OneUnderWaySaysHowFarItIsAndIsCancelledOnAllRanks) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
  ASSERT_OK_AND_ASSIGN(const int64_t first, Ask(Path("c")));
  const int64_t kept = TrainUntilEnded(&team, first).step();
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.created", hold);
  ASSERT_OK_AND_ASSIGN(const int64_t second, Ask(Path("c")));
  const v1::Save saving = TrainUntil(&team, second, v1::SAVE_STATE_SAVING);
  EXPECT_GT(saving.step(), kept);
  // How much it is comes with a report of its own.
  EXPECT_TRUE(Eventually([&] { return Get(second).all_bytes() > 0; }));
  const CliResult listed = Cli({"saves", "--job", "toy"});
  EXPECT_THAT(listed.out, HasSubstr("SAVING"));
  const CliResult cancelled = Cli({"saves", "--job", "toy", "--cancel", absl::StrCat(second)});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  EXPECT_THAT(cancelled.out, HasSubstr("is being cancelled"));
  // The release of this order follows the word of the cancelling on its way.
  ASSERT_OK(team.RunAll([](Session* session) { return ReadAll(session).status(); }));
  DisarmAllFaultPoints();
  const v1::Save ended = TrainUntilEnded(&team, second);
  EXPECT_EQ(ended.code(), static_cast<int>(absl::StatusCode::kCancelled)) << ended.message();
  EXPECT_EQ(Get(first).fate(), v1::SAVE_FATE_KEPT);
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, kept);
}

TEST_F(SaveRequestTest, TrainersThatLeaveWhileItIsWrittenDoNotEndIt) {
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.created", hold);
  int64_t number = 0;
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenHandlingTeam("toy"));
    ASSERT_OK_AND_ASSIGN(number, Ask(Path("c")));
    TrainUntil(&team, number, v1::SAVE_STATE_SAVING);
  }
  DisarmAllFaultPoints();
  EXPECT_TRUE(Eventually([&] { return Get(number).state() == v1::SAVE_STATE_ENDED; }));
  EXPECT_EQ(Get(number).code(), 0) << Get(number).message();
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
  EXPECT_THAT(verified.damages, IsEmpty());
}

TEST_F(SaveRequestTest, OneThatIsWithdrawnBetweenStepAndSaveIsNotMade) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  int64_t number = 0;
  std::atomic<int> called{0};
  // The other ranks wait for this one meanwhile.
  OnSaveRequest(team.session(1), [&](int64_t) {
    ++called;
    EXPECT_OK(client_->Cancel("toy", number));
    return CheckpointContents();
  });
  ASSERT_OK_AND_ASSIGN(number, Ask(Path("c")));
  EXPECT_EQ(TrainUntilEnded(&team, number).code(), static_cast<int>(absl::StatusCode::kCancelled));
  ASSERT_OK(team.TrainTo(team.session(0)->next_step()));
  EXPECT_EQ(called.load(), 1);
  EXPECT_FALSE(std::filesystem::exists(Path("c")));
}

TEST_F(SaveRequestTest, OneThatNobodyTakesSaysWhyAndEndsAtItsDeadlineOrIsCancelled) {
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
    ASSERT_OK(team.TrainTo(1));
  }
  const CliResult asked =
      Cli({"save", "--job", "toy", "--to", Path("c"), "--deadline", "20ms", "--wait"});
  EXPECT_NE(asked.exit_code, 0);
  EXPECT_THAT(asked.err, HasSubstr("DEADLINE_EXCEEDED"));
  ASSERT_OK_AND_ASSIGN(const int64_t number, Ask(Path("c")));
  EXPECT_EQ(Get(number).state(), v1::SAVE_STATE_WAITING);
  // As soon as the worker has said it.
  EXPECT_TRUE(Eventually([&] {
    return Get(number).waits_for() == "trainers: none is attached to ranks 0, 1, 2";
  })) << Get(number).waits_for();
  ASSERT_OK(client_->Cancel("toy", number));
  EXPECT_EQ(Get(number).code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_THAT(Cli({"saves", "--job", "toy"}).out, HasSubstr("no saves wait or run"));
}

TEST_F(SaveRequestTest, CommandThatWaitsForADeletedJobSaysSo) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  ASSERT_OK(team.TrainTo(1));
  CliResult saved;
  std::thread command([&] { saved = Cli({"save", "--job", "toy", "--to", Path("c")}); });
  EXPECT_TRUE(Eventually([&] { return client_->List("toy")->saves_size() > 0; }));
  EXPECT_EQ(Cli({"jobs", "delete", "toy"}).exit_code, 0);
  command.join();
  EXPECT_NE(saved.exit_code, 0);
  EXPECT_THAT(saved.err, testing::AllOf(HasSubstr("NOT_FOUND"), HasSubstr("save 1")));
  EXPECT_THAT(client_->List("toy"), StatusIs(absl::StatusCode::kNotFound, testing::_));
}

TEST_F(SaveRequestTest, WhatTrainersSaveByThemselvesIsListedTooHoweverItEnds) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  ASSERT_OK(team.TrainTo(1));
  const auto save = [&](const std::string& path, SaveOptions options) {
    const absl::Status status = team.RunAll([&](Session* session) {
      const absl::Status begun = SaveCheckpoint(session, path, {}, options);
      return begun.ok() && options.in_background ? AwaitSave(session) : begun;
    });
    return status;
  };
  SaveOptions background, parts, both;
  background.in_background = both.in_background = true;
  parts.in_parts = both.in_parts = true;
  ASSERT_OK(save(Path("now"), {}));
  ASSERT_OK(save(Path("later"), background));
  ASSERT_OK(save(Path("parts"), parts));
  ASSERT_OK(save(Path("parts-later"), both));
  EXPECT_FALSE(save("/proc/no/such/folder", {}).ok());
  EXPECT_FALSE(save("relative", {}).ok());
  EXPECT_TRUE(Eventually([&] { return client_->List("toy")->saves_size() >= 6; }));
  ASSERT_OK_AND_ASSIGN(const v1::ListCheckpointsResponse saves, client_->List("toy"));
  ASSERT_EQ(saves.saves_size(), 6);
  const std::vector<std::string> paths = {"relative",          "/proc/no/such/folder",
                                          Path("parts-later"), Path("parts"),
                                          Path("later"),       Path("now")};
  for (int i = 0; i < 6; ++i) {
    const v1::Save& listed = saves.saves(i);
    EXPECT_EQ(listed.spec().path(), paths[i]);
    EXPECT_FALSE(listed.requested());
    EXPECT_EQ(listed.step(), 1);
    EXPECT_EQ(listed.code() == 0, i >= 2) << listed.message();
    EXPECT_EQ(listed.size_bytes() > 0, i >= 2);
    EXPECT_EQ(listed.fate() == v1::SAVE_FATE_KEPT, i >= 2);
  }
  const CliResult text = Cli({"checkpoints", "--job", "toy"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr(Path("parts-later")));
  EXPECT_THAT(text.out, HasSubstr("rank 0"));
  const auto json = nlohmann::json::parse(Cli({"checkpoints", "--job", "toy", "--json"}).out);
  EXPECT_EQ(json["saves"].size(), 6);
  EXPECT_EQ(json["saves"][5]["fate"], "kept");
}

}  // namespace
}  // namespace tessera
