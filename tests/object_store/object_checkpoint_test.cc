// Checkpoints in an object store: through a real coordinator, worker, executors and sessions, and by
// the commands for files.
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/stored_model.h"
#include "tests/object_store/object_store.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_state.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::CliResult;
using testing_support::ReadState;
using testing_support::RunTessera;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using State = testing_support::ToyState;

class ObjectCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    auto started = ObjectStore::Start();
    if (absl::IsNotFound(started.status())) GTEST_SKIP() << started.status().message();
    ASSERT_OK(started);
    store_ = *std::move(started);
    StartCluster("");
  }
  // `executor`: "": threads.
  void StartCluster(const std::string& executor) {
    LocalCluster::Options options;
    options.num_devices = 16;
    options.executor_binary = executor;
    cluster_.reset();
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  std::string Path(const std::string& name) const { return store_->Path(name); }
  absl::StatusOr<TrainerTeam> OpenTeam(const std::string& job, int world_size) {
    return TrainerTeam::Open(ToyOptions(*cluster_, job, world_size));
  }
  static State StateOf(TrainerTeam* team) {
    State state;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(State read, ReadState(session));
      if (session->rank() == 0) state = std::move(read);
      return absl::OkStatus();
    }));
    return state;
  }
  static absl::Status Save(TrainerTeam* team, const std::string& path, SaveOptions options = {}) {
    return team->RunAll([&](Session* session) {
      CheckpointContents contents;
      contents.trainer_state = absl::StrCat("rank ", session->rank());
      return SaveCheckpoint(session, path, contents, options);
    });
  }
  static absl::Status Load(TrainerTeam* team, const std::string& path) {
    return team->RunAll([&](Session* session) { return LoadCheckpoint(session, path).status(); });
  }
  CliResult Cli(std::vector<std::string> args) const {
    return RunTessera(cluster_->coordinator_address(), std::move(args));
  }
  static CliResult FileCli(std::vector<std::string> args) {
    return RunTessera("", std::move(args));
  }
  static void ExpectWhole(const std::string& path) {
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path));
    EXPECT_THAT(verified.damages, IsEmpty());
  }
  // A job that loads it has the state.
  void ExpectLoads(const std::string& path, const State& expected, int world_size = 2) {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                         OpenTeam(absl::StrCat("load", ++num_loads_), world_size));
    ASSERT_OK(Load(&team, path));
    EXPECT_TRUE(StateOf(&team) == expected);
  }

  std::unique_ptr<ObjectStore> store_;
  std::unique_ptr<LocalCluster> cluster_;
  int num_loads_ = 0;
};

TEST_F(ObjectCheckpointTest, IsSavedByAllRanksAndLoadedByAnotherWorldToTheBit) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 3));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(Save(&team, Path("run/c")));
  const State first = StateOf(&team);
  ExpectWhole(Path("run/c"));
  ExpectLoads(Path("run/c"), first);
  // In place of it, in the background and in files of a few tensors.
  ASSERT_OK(team.TrainTo(3));
  SaveOptions options;
  options.in_background = true;
  options.max_file_bytes = 2'000;
  const State second = StateOf(&team);
  ASSERT_OK(Save(&team, Path("run/c"), options));
  ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
  ExpectWhole(Path("run/c"));
  ExpectLoads(Path("run/c"), second, 4);
  options.overwrite = false;
  EXPECT_THAT(Save(&team, Path("run/c"), options),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("run/c"))));
  for (const std::string& key : store_->Keys())
    EXPECT_TRUE(absl::StartsWith(key, "run/c/") && !absl::StrContains(key, ".partial")) << key;
  EXPECT_THAT(store_->Uploads(), IsEmpty());
}

TEST_F(ObjectCheckpointTest, NewestAreKeptAndOlderOnesLeaveNothing) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 2));
  SaveOptions options;
  options.keep_newest = 2;
  for (int step = 1; step <= 4; ++step) {
    ASSERT_OK(team.TrainTo(step));
    ASSERT_OK(Save(&team, Path(absl::StrCat("run/step-", step)), options));
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<ListedCheckpoint> left, ListCheckpoints(Path("run")));
  ASSERT_EQ(left.size(), 2);
  EXPECT_EQ(left[0].path, Path("run/step-3"));
  EXPECT_EQ(left[1].path, Path("run/step-4"));
  for (const std::string& key : store_->Keys()) {
    EXPECT_TRUE(absl::StartsWith(key, "run/step-3/") || absl::StartsWith(key, "run/step-4/"))
        << key;
  }
}

TEST_F(ObjectCheckpointTest, PartsOfRanksAreConsolidatedToAnyStorage) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 3));
  ASSERT_OK(team.TrainTo(2));
  SaveOptions options;
  options.in_parts = true;
  ASSERT_OK(Save(&team, Path("parts"), options));
  ASSERT_OK(Save(&team, Path("parts"), options)) << "the same step again";
  const State state = StateOf(&team);
  const std::string file = testing::TempDir() + "/consolidated";
  std::filesystem::remove_all(file);
  for (const std::string& out : {Path("whole"), file}) {
    const CliResult made = FileCli({"consolidate", Path("parts"), "--out", out});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    ExpectWhole(out);
    ExpectLoads(out, state);
  }
}

TEST_F(ObjectCheckpointTest, CommandsForFilesReadIt) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 2));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(Save(&team, Path("run/a")));
  ASSERT_OK(Save(&team, Path("run/b")));
  const CliResult list = FileCli({"checkpoints", Path("run")});
  EXPECT_THAT(list.out, AllOf(HasSubstr(Path("run/a")), HasSubstr(Path("run/b")))) << list.err;
  const CliResult verified = FileCli({"verify", Path("run/a/")});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  const CliResult tensors = FileCli({"ls", Path("run/a")});
  EXPECT_EQ(tensors.exit_code, 0) << tensors.err;
  EXPECT_THAT(tensors.out, HasSubstr("optimizer"));
  const CliResult diff = FileCli({"diff", Path("run/a"), Path("run/b")});
  EXPECT_EQ(diff.exit_code, 0) << diff.out << diff.err;
  // Damage is found by the manifest's checksums.
  for (const std::string& key : store_->Keys()) {
    if (absl::StartsWith(key, "run/b/") && absl::EndsWith(key, "/trainer-00000.bin"))
      store_->Ask({{"do", "put"}, {"key", key}, {"text", "rank 9"}});
  }
  const CliResult damaged = FileCli({"verify", Path("run/b")});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.out + damaged.err, HasSubstr("trainer-00000.bin"));
}

TEST_F(ObjectCheckpointTest, ModelAloneIsAFileOfTheFormatForOtherPrograms) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 3));
  ASSERT_OK(team.TrainTo(2));
  const State state = StateOf(&team);
  SaveOptions split;
  split.max_file_bytes = 2'000;
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(SaveModel(session, Path("models/one.safetensors")));
    return SaveModel(session, Path("models/split"), split);
  }));
  EXPECT_THAT(store_->Keys(), testing::Contains("models/one.safetensors"));
  for (const char* name : {"models/one.safetensors", "models/split"}) {
    ASSERT_OK_AND_ASSIGN(TrainerTeam other, OpenTeam(absl::StrCat("other", ++num_loads_), 2));
    ASSERT_OK(
        other.RunAll([&](Session* session) { return LoadModel(session, Path(name)).status(); }));
    EXPECT_TRUE(StateOf(&other).parameters == state.parameters) << name;
  }
}

TEST_F(ObjectCheckpointTest, CommandRequestsOneOfAJobThatTrains) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 2));
  ASSERT_OK(team.RunAll([](Session* session) {
    OnSaveRequest(session, [](int64_t) { return CheckpointContents(); });
    return absl::OkStatus();
  }));
  ASSERT_OK(team.TrainTo(1));
  CliResult saved;
  std::atomic<bool> over{false};
  std::thread command([&] {
    saved = Cli({"save", "--job", "toy", "--to", Path("asked/c"), "--wait"});
    over.store(true);
  });
  constexpr int kMostSteps = 50'000;
  for (int step = 2; !over.load() && step < kMostSteps; ++step) ASSERT_OK(team.TrainTo(step));
  command.join();
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  ExpectWhole(Path("asked/c"));
}

TEST_F(ObjectCheckpointTest, ExecutorsThatAreProcessesHaveTheWorkersCredentials) {
  StartCluster("worker/tessera-executor");
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 2));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(Save(&team, Path("c")));
  ExpectLoads(Path("c"), StateOf(&team));
}

TEST_F(ObjectCheckpointTest, WithoutCredentialsAllRanksAreTold) {
  unsetenv("AWS_ACCESS_KEY_ID");
  setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere", 1);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 2));
  ASSERT_OK(team.TrainTo(1));
  const auto told = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("AWS_ACCESS_KEY_ID"));
  for (const absl::Status& status :
       team.Run([&](Session* session) { return SaveCheckpoint(session, Path("c")); }))
    EXPECT_THAT(status, told);
  ASSERT_OK(team.TrainTo(2));
}

// Each of these is done again until it succeeds, and what is saved is what was.
TEST_F(ObjectCheckpointTest, FaultsOfTheStoreThatPassAreNotSeen) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy", 3));
  for (const int seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    ASSERT_OK(team.TrainTo(seed));
    store_->SetFaults(
        {{"kinds", {"500", "503", "cut", "lost", "half", "delay"}}, {"rate", 0.2}, {"seed", seed}});
    ASSERT_OK(Save(&team, Path("c")));
    ExpectWhole(Path("c"));
    ExpectLoads(Path("c"), StateOf(&team));
    EXPECT_GT(store_->NumSpoiled(), 5);
    store_->Heal();
  }
  for (const std::string& key : store_->Keys())
    EXPECT_FALSE(absl::StrContains(key, ".partial")) << key;
}

}  // namespace
}  // namespace tessera
