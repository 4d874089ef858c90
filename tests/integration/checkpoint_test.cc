// Checkpoints through a real coordinator, worker, executors (threads) and sessions.
#include "tessera/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/toy_state.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::ReadState;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using State = testing_support::ToyState;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    LocalCluster::Options options;
    options.num_devices = 32;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(std::filesystem::create_directories(folder_));
  }
  void TearDown() override { DisarmAllFaultPoints(); }

  SessionOptions Options(int world_size, Strategy strategy = Strategy::kFullShard) {
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("job", ++num_jobs_), world_size);
    options.config.strategy = strategy;
    return options;
  }
  absl::StatusOr<TrainerTeam> OpenTeam(int world_size, Strategy strategy = Strategy::kFullShard) {
    return TrainerTeam::Open(Options(world_size, strategy));
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // Rank 0's view.
  static State StateOf(TrainerTeam* team) {
    State state;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(State read, ReadState(session));
      if (session->rank() == 0) state = std::move(read);
      return absl::OkStatus();
    }));
    return state;
  }
  static absl::Status Save(TrainerTeam* team, const std::string& path) {
    return team->RunAll([&](Session* session) { return SaveCheckpoint(session, path); });
  }
  static absl::Status Load(TrainerTeam* team, const std::string& path) {
    return team->RunAll([&](Session* session) { return LoadCheckpoint(session, path).status(); });
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::string folder_;
  int num_jobs_ = 0;
};

TEST_F(CheckpointTest, GoesFromAnyWorldToAnyOtherToTheBitOptimizerIncluded) {
  State expected;
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(8));
    ASSERT_OK(team.TrainTo(3));
    expected = StateOf(&team);
    ASSERT_OK(Save(&team, Path("8")));
  }
  std::string from = Path("8");
  for (const auto& [world, strategy] :
       {std::pair(3, Strategy::kShardGradOp), std::pair(5, Strategy::kNoShard),
        std::pair(1, Strategy::kFullShard), std::pair(8, Strategy::kFullShard)}) {
    SCOPED_TRACE(world);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(world, strategy));
    ASSERT_OK(Load(&team, from));
    EXPECT_EQ(team.session(0)->next_step(), 4);
    EXPECT_TRUE(StateOf(&team) == expected);
    from = Path(absl::StrCat("after", world));
    ASSERT_OK(Save(&team, from));
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(from));
    EXPECT_THAT(verified.damages, IsEmpty());
  }
  ASSERT_OK_AND_ASSIGN(const Manifest first, ReadManifest(Path("8")));
  ASSERT_OK_AND_ASSIGN(const Manifest last, ReadManifest(Path("after8")));
  for (const absl::string_view file : {kModelFileName, kOptimizerFileName}) {
    EXPECT_EQ(last.files.at(std::string(file)).tensors, first.files.at(std::string(file)).tensors)
        << "checksums of sums over slices of whatever world";
  }
}

TEST_F(CheckpointTest, JobThatLoadsItGoesOnToTheBitsOfTheOneThatSavedIt) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam whole, OpenTeam(3));
  ASSERT_OK(whole.TrainTo(4));
  ASSERT_OK(Save(&whole, Path("c")));
  ASSERT_OK(whole.TrainTo(8));
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, OpenTeam(3));
  ASSERT_OK(Load(&next, Path("c")));
  ASSERT_OK(next.TrainTo(8));
  EXPECT_TRUE(StateOf(&next) == StateOf(&whole));
  // A job that went on goes back, as one write.
  const int64_t writes = whole.session(0)->num_writes();
  ASSERT_OK(Load(&whole, Path("c")));
  EXPECT_EQ(whole.session(0)->num_writes(), writes + 1);
  EXPECT_EQ(whole.session(0)->next_step(), 5);
  ASSERT_OK(whole.TrainTo(8));
  EXPECT_TRUE(StateOf(&next) == StateOf(&whole));
}

TEST_F(CheckpointTest, TrainersBytesAndBuffersComeBackToTheRankThatSavedThem) {
  const NamedTensor running_mean = {"bn.running_mean", DType::kFp32, {3}, "abcdefghijkl"};
  const NamedTensor count = {"bn.num_batches", DType::kInt64, {}, "12345678"};
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  const std::string large(300'000, 'x');  // Longer than a piece of a message.
  ASSERT_OK(team.RunAll([&](Session* session) {
    CheckpointContents own;
    own.trainer_state = absl::StrCat("rank ", session->rank(), large);
    own.buffers = {running_mean, count};
    if (session->rank() == 1) own.buffers[0].values = "another rank";
    return SaveCheckpoint(session, Path("c"), own);
  }));
  ASSERT_OK_AND_ASSIGN(TrainerTeam wider, OpenTeam(3));
  ASSERT_OK(wider.RunAll([&](Session* session) -> absl::Status {
    LoadCheckpointOptions options;
    options.buffers = {{running_mean.name, running_mean.dtype, running_mean.shape, ""},
                       {count.name, count.dtype, count.shape, ""}};
    ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(session, Path("c"), options));
    EXPECT_EQ(loaded.step, 1);
    EXPECT_EQ(loaded.saved_world_size, 2);
    EXPECT_EQ(loaded.trainer_state,
              absl::StrCat("rank ", session->rank() < 2 ? session->rank() : 0, large));
    EXPECT_EQ(loaded.buffers.size(), 2);
    EXPECT_EQ(loaded.buffers[0].values, running_mean.values) << "rank 0's";
    EXPECT_EQ(loaded.buffers[1].values, count.values);
    EXPECT_EQ(loaded.groups.size(), 1);
    EXPECT_EQ(loaded.groups[0].learning_rate, session->config().groups[0].learning_rate);
    return absl::OkStatus();
  }));
}

TEST_F(CheckpointTest, WhatDoesNotFitIsAnErrorByNameAndNothingChanges) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(team.RunAll([&](Session* session) {
    return SaveCheckpoint(session, Path("c"), {{{"buffer", DType::kFp32, {1}, "abcd"}}, ""});
  }));
  const State before = StateOf(&team);
  const auto load = [&](const std::string& path, const LoadCheckpointOptions& options) {
    absl::Status first;
    for (const absl::Status& status : team.Run(
             [&](Session* session) { return LoadCheckpoint(session, path, options).status(); })) {
      EXPECT_FALSE(status.ok());
      if (first.ok()) first = status;
    }
    return first;
  };
  EXPECT_THAT(load(Path("none"), {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(load(Path("c"), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the model lacks 'buffer'")));
  LoadCheckpointOptions options;
  options.buffers = {{"buffer", DType::kFp32, {2}, ""}};
  EXPECT_THAT(load(Path("c"), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'buffer' is F32 [1]")));
  options.buffers = {{"buffer", DType::kFp32, {1}, ""}, {"other", DType::kFp32, {1}, ""}};
  EXPECT_THAT(load(Path("c"), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it lacks 'other'")));
  EXPECT_TRUE(StateOf(&team) == before);

  SessionOptions sgd = Options(2);
  sgd.config.optimizer = OptimizerKind::kSgd;
  ASSERT_OK_AND_ASSIGN(TrainerTeam other, TrainerTeam::Open(sgd));
  for (const absl::Status& status :
       other.Run([&](Session* session) { return LoadCheckpoint(session, Path("c")).status(); })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("'adamw'"), HasSubstr("'sgd'"))));
  }
  // Its parameters can be used, though.
  ASSERT_OK(other.RunAll([&](Session* session) {
    LoadCheckpointOptions model_only;
    model_only.model_only = true;
    model_only.buffers = {{"buffer", DType::kFp32, {1}, ""}};
    return LoadCheckpoint(session, Path("c"), model_only).status();
  }));
  EXPECT_EQ(StateOf(&other).parameters, before.parameters);
  EXPECT_EQ(other.session(0)->next_step(), 1);
}

TEST_F(CheckpointTest, StateOfTheOptimizerAloneIsLoadedAndTheModelStaysAsItIs) {
  State saved;
  ASSERT_OK_AND_ASSIGN(TrainerTeam first, OpenTeam(2));
  ASSERT_OK(first.TrainTo(3));
  ASSERT_OK(first.RunAll([&](Session* session) {
    CheckpointContents own;
    own.buffers = {{"buffer", DType::kFp32, {1}, "abcd"}};
    return SaveCheckpoint(session, Path("c"), own);
  }));
  saved = StateOf(&first);
  LoadCheckpointOptions options;
  options.optimizer_only = true;
  const auto load = [&](TrainerTeam* team) {
    return team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(session, Path("c"), options));
      EXPECT_EQ(loaded.step, 3);
      EXPECT_THAT(loaded.missing, IsEmpty());
      EXPECT_THAT(loaded.unexpected, IsEmpty());
      return absl::OkStatus();
    });
  };
  for (const int world : {1, 3}) {
    SCOPED_TRACE(world);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(world));
    EXPECT_THAT(load(&team), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("the job has no values yet")));
    ASSERT_OK(team.TrainTo(1));
    const State before = StateOf(&team);
    ASSERT_FALSE(before == saved);
    ASSERT_OK(load(&team));
    State expected = saved;
    expected.parameters = before.parameters;
    EXPECT_TRUE(StateOf(&team) == expected);
    EXPECT_EQ(team.session(0)->next_step(), 4);
    ASSERT_OK(team.TrainTo(4));
    options.model_only = true;
    EXPECT_THAT(load(&team), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("of the model only and of the optimizer only")));
    options.model_only = false;
    // On whichever rank.
    const State loaded = StateOf(&team);
    LoadCheckpointOptions with_buffers = options;
    with_buffers.buffers = {{"buffer", DType::kFp32, {1}, ""}, {"other", DType::kFp32, {1}, ""}};
    const auto statuses = team.Run([&](Session* session) {
      const bool is_last = session->rank() + 1 == world;
      return LoadCheckpoint(session, Path("c"), is_last ? with_buffers : options).status();
    });
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("of the optimizer only gives no buffers, as 'buffer'")));
    }
    EXPECT_TRUE(StateOf(&team) == loaded);
  }
}

TEST_F(CheckpointTest, AnyDamageIsFoundByNameOnAllRanksAndNothingIsLoaded) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(team.RunAll([&](Session* session) {
    return SaveCheckpoint(session, Path("c"), {{}, "a trainer's own bytes"});
  }));
  const State before = StateOf(&team);
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(Path("c")));
  for (const auto& [name, expected] : manifest.files) {
    const std::string path = absl::StrCat(Path("c"), "/", name);
    for (int i = 0; i < 6; ++i) {
      // Spread over the file: header, the ranks' slices, the last byte.
      const int64_t at = i == 5 ? expected.size_bytes - 1 : expected.size_bytes * i / 5;
      SCOPED_TRACE(absl::StrCat(name, " at ", at));
      const auto flip = [&] {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(at);
        const char byte = static_cast<char>(file.get() ^ (1 << i));
        file.seekp(at);
        file.put(byte);
      };
      flip();
      for (const absl::Status& status : team.Run(
               [&](Session* session) { return LoadCheckpoint(session, Path("c")).status(); })) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)));
      }
      ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
      EXPECT_EQ(verified.damages.size(), 1);
      flip();
    }
  }
  std::filesystem::resize_file(absl::StrCat(Path("c"), "/", kModelFileName), 1000);
  EXPECT_THAT(Load(&team, Path("c")), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1000")));
  std::filesystem::remove(absl::StrCat(Path("c"), "/", kOptimizerFileName));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
  EXPECT_EQ(verified.damages.size(), 2);
  EXPECT_TRUE(StateOf(&team) == before);
}

TEST_F(CheckpointTest, ErrorAtAnyPointOfASaveIsEveryRanksAndThePreviousOneStays) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(Save(&team, Path("c")));
  ASSERT_OK(team.TrainTo(2));
  for (const char* point :
       {"checkpoint.begin", "save.created", "model-file.write", "save.written",
        "model-file.publish", "file.write", "file.sync", "folder.sync", "checkpoint.rename"}) {
    int hit = 1;
    while (true) {
      SCOPED_TRACE(absl::StrCat(point, " ", hit));
      Fault fault;
      fault.at_hit = hit;
      fault.status = absl::ResourceExhaustedError("no space left");
      ArmFaultPoint(point, fault);
      const std::vector<absl::Status> statuses =
          team.Run([&](Session* session) { return SaveCheckpoint(session, Path("c")); });
      DisarmAllFaultPoints();
      if (statuses[0].ok()) break;  // All hits were tried.
      for (const absl::Status& status : statuses)
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank")));
      ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
      EXPECT_THAT(verified.damages, IsEmpty());
      EXPECT_EQ(verified.manifest.step, 1);
      ++hit;
    }
    EXPECT_GT(hit, 1) << "the point is on the way";
    ASSERT_OK_AND_ASSIGN(const Manifest saved, ReadManifest(Path("c")));
    EXPECT_EQ(saved.step, 2);
    // Back to the older one, for the next point.
    ASSERT_OK(Load(&team, Path("c")));
    ASSERT_OK_AND_ASSIGN(TrainerTeam old, OpenTeam(1));
    ASSERT_OK(old.TrainTo(1));
    ASSERT_OK(Save(&old, Path("c")));
    ASSERT_OK_AND_ASSIGN(const std::vector<ListedCheckpoint> left, ListCheckpoints(folder_));
    ASSERT_EQ(left.size(), 1);
    EXPECT_EQ(left[0].step, 1);
  }
}

TEST_F(CheckpointTest, SaveInTheBackgroundHasTheStateOfItsStepWhateverTrainingDoesMeanwhile) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(2));
  const State saved = StateOf(&team);
  SaveOptions background;
  background.in_background = true;
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    EXPECT_THAT(AwaitSave(session), StatusIs(absl::StatusCode::kFailedPrecondition, testing::_));
    return SaveCheckpoint(session, Path("c"), {{}, "own"}, background);
  }));
  ASSERT_OK(team.TrainTo(7));
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(AwaitSave(session));
    ASSIGN_OR_RETURN(const SaveStatus status, GetSaveStatus(session));
    EXPECT_EQ(status.path, Path("c"));
    EXPECT_TRUE(session->rank() > 0 || status.all_bytes > 0);
    EXPECT_EQ(status.written_bytes, status.all_bytes);
    return absl::OkStatus();
  }));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("c")));
  EXPECT_THAT(verified.damages, IsEmpty());
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, OpenTeam(2));
  ASSERT_OK(Load(&next, Path("c")));
  EXPECT_TRUE(StateOf(&next) == saved);
}

TEST_F(CheckpointTest, SavesInTheBackgroundFollowEachOtherAndJustTheNewestStay) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  SaveOptions options;
  options.in_background = true;
  options.keep_newest = 2;
  for (int step = 1; step <= 5; ++step) {
    ASSERT_OK(team.TrainTo(step));
    ASSERT_OK(team.RunAll([&](Session* session) {
      return SaveCheckpoint(session, Path(absl::StrCat("step-", step)), {}, options);
    }));
  }
  ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
  ASSERT_OK_AND_ASSIGN(const std::vector<ListedCheckpoint> left, ListCheckpoints(folder_));
  ASSERT_EQ(left.size(), 2);
  EXPECT_EQ(left[0].step, 4);
  EXPECT_EQ(left[1].step, 5);
}

TEST_F(CheckpointTest, OneThatWasJustSavedStaysThoughOthersAreOfLaterSteps) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(Save(&team, Path("first")));
  ASSERT_OK(team.TrainTo(5));
  ASSERT_OK(Save(&team, Path("later")));
  ASSERT_OK(Load(&team, Path("first")));
  ASSERT_OK(team.TrainTo(2));
  std::filesystem::create_directory_symlink(Path("later"), Path("link"));
  SaveOptions options;
  options.keep_newest = 2;
  ASSERT_OK(team.RunAll([&](Session* session) {
    return SaveCheckpoint(session, Path("earlier-step"), {}, options);
  }));
  EXPECT_FALSE(std::filesystem::exists(Path("first"))) << "it was saved first";
  EXPECT_TRUE(std::filesystem::exists(Path("later")));
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  ASSERT_OK_AND_ASSIGN(const Manifest kept, ReadManifest(Path("earlier-step")));
  EXPECT_EQ(kept.step, 2);
}

TEST_F(CheckpointTest, JobWithoutValuesIsNotSavedOverOneThatHasThem) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(Save(&team, Path("c")));
  ASSERT_OK_AND_ASSIGN(TrainerTeam empty, OpenTeam(2));
  for (const absl::Status& status :
       empty.Run([&](Session* session) { return SaveCheckpoint(session, Path("c")); })) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no initial values")));
  }
  ASSERT_OK_AND_ASSIGN(const Manifest kept, ReadManifest(Path("c")));
  EXPECT_EQ(kept.step, 1);
}

TEST_F(CheckpointTest, TooManyBytesOfOneTrainerAreEveryRanksError) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  for (const absl::Status& status : team.Run([&](Session* session) {
         CheckpointContents own;
         if (session->rank() == 1) own.trainer_state.resize(kMaxTrainerStateBytes + 1);
         return SaveCheckpoint(session, Path("c"), own);
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("rank 1"), HasSubstr("trainer state of"))));
  }
}

TEST_F(CheckpointTest, ErrorOfASaveInTheBackgroundIsToldToAllWhoAskAndTrainingGoesOn) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(3));
  ASSERT_OK(team.TrainTo(1));
  Fault fault;
  fault.status = absl::ResourceExhaustedError("no space left");
  ArmFaultPoint("save.written", fault);
  SaveOptions options;
  options.in_background = true;
  ASSERT_OK(team.RunAll(
      [&](Session* session) { return SaveCheckpoint(session, Path("c"), {}, options); }));
  ASSERT_OK(team.TrainTo(2));
  for (const absl::Status& status : team.Run([](Session* session) { return AwaitSave(session); }))
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no space left")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  ASSERT_OK(team.TrainTo(3));
  ASSERT_OK(Save(&team, Path("c")));
}

TEST_F(CheckpointTest, FolderThatIsNoCheckpointIsNotReplaced) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_TRUE(std::filesystem::create_directories(Path("photos/of/last/year")));
  EXPECT_THAT(Save(&team, Path("photos")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not a checkpoint")));
  EXPECT_TRUE(std::filesystem::exists(Path("photos/of/last/year")));
  ASSERT_TRUE(std::filesystem::create_directories(Path("run.partial/notes")));
  EXPECT_THAT(Save(&team, Path("run")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("'notes', which belongs to no checkpoint")));
  EXPECT_TRUE(std::filesystem::exists(Path("run.partial/notes")));
  EXPECT_THAT(Save(&team, "relative"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'relative'")));
}

TEST_F(CheckpointTest, PathWithTheSchemeOfTheFileSystemIsOneAndOtherSchemesAreRefusedByName) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(2));
  ASSERT_OK(team.TrainTo(1));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("'gs://bucket/c': there is no storage for gs://"));
  EXPECT_THAT(Save(&team, "gs://bucket/c"), refused);
  for (const absl::Status& status :
       team.Run([](Session* session) { return session->Save("gs://bucket/c"); }))
    EXPECT_THAT(status, refused);
  for (const absl::Status& status :
       team.Run([](Session* session) { return LoadCheckpoint(session, "gs://bucket/c").status(); }))
    EXPECT_THAT(status, refused);
  EXPECT_FALSE(std::filesystem::exists("s3:"));
  ASSERT_OK(Save(&team, absl::StrCat("file://", Path("c"))));
  ASSERT_OK(VerifyCheckpoint(Path("c")));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(team.RunAll([&](Session* session) {
    return LoadCheckpoint(session, absl::StrCat("file://", Path("c"))).status();
  }));
  EXPECT_EQ(team.session(0)->next_step(), 2);
}

}  // namespace
}  // namespace tessera
