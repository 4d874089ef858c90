// Executors are killed while they save or load a checkpoint. What has the checkpoint's name is
// always a whole one, the old or the new; what is loaded is on all ranks or on none.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/optimizer_state.h"
#include "tests/fault/killed_and_stopped.h"
#include "tests/testing/flip_bit.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::IsEmpty;
using testing_support::FlipBit;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;

struct Place {
  const char* point;
  int hit = 1;
  bool there = false;  // Of a save: the new one has its name; of a load: it is decided.
  const char* action = "kill";
  const char* more_faults = "";  // Without which executors would not always come there.
};

std::string NameOf(const testing::TestParamInfo<Place>& info) {
  std::string name = absl::StrCat(info.param.point, info.param.hit, info.param.action);
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !isalnum(c); }),
             name.end());
  return name;
}

class CheckpointKillTest : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2 * kWorldSize;
    options.executor_binary = "worker/tessera-executor";
    options.executor_flags = {absl::StrCat("--fault-points=", GetParam().point, "=",
                                           GetParam().action, "@", GetParam().hit,
                                           GetParam().more_faults)};
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    path_ = absl::StrCat(testing::TempDir(), "/killed-", getpid());
    std::filesystem::remove_all(path_);
  }
  absl::StatusOr<TrainerTeam> OpenTeam(const std::string& job) {
    return TrainerTeam::Open(ToyOptions(*cluster_, job, kWorldSize));
  }
  static std::vector<float> Values(TrainerTeam* team) {
    std::vector<float> values;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<float> all, ReadAll(session));
      if (session->rank() == 0) values = all;
      return absl::OkStatus();
    }));
    return values;
  }
  // Until it is done: every try may meet a new executor that dies at the same place.
  static absl::Status SaveUntilDone(TrainerTeam* team, const std::string& path) {
    return team->RunAll([&](Session* session) -> absl::Status {
      while (true) {
        const absl::Status status = SaveCheckpoint(session, path);
        if (!absl::IsAborted(status)) return status;
        RETURN_IF_ERROR(session->Recover());
      }
    });
  }
  // Each executor has been at no place yet then, so that the next save is whole: those of which
  // only some died count on where the new ones begin, and would die in turn for ever.
  void RenewExecutors() {
    for (int rank = 0; rank < kWorldSize; ++rank) cluster_->KillExecutorForTest("toy", rank);
  }
  std::unique_ptr<LocalCluster> cluster_;
  std::string path_;
};

class SaveKillTest : public CheckpointKillTest {};

// The first save of each job is whole; each executor dies in a later one.
TEST_P(SaveKillTest, LeavesTheOldCheckpointOrTheNewOneWhole) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  ASSERT_OK(team.TrainTo(1));
  std::vector<std::vector<float>> at_step = {{}, Values(&team)};
  ASSERT_OK(SaveUntilDone(&team, path_));
  ASSERT_OK(team.TrainTo(2));
  at_step.push_back(Values(&team));
  bool died = false;
  for (const absl::Status& status :
       team.Run([&](Session* session) { return SaveCheckpoint(session, path_); })) {
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::_));
      died = true;
    }
  }
  EXPECT_TRUE(died);
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path_));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, GetParam().there ? 2 : 1);
  const int64_t step = verified.manifest.step;
  // Training continues, and another job starts from what is there.
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  ASSERT_OK(team.TrainTo(3));
  ASSERT_OK_AND_ASSIGN(TrainerTeam next, OpenTeam("next"));
  ASSERT_OK(next.RunAll([&](Session* session) { return LoadCheckpoint(session, path_).status(); }));
  EXPECT_EQ(Values(&next), at_step[step]);
  EXPECT_EQ(next.session(0)->next_step(), step + 1);
  RenewExecutors();
  ASSERT_OK(SaveUntilDone(&team, path_));
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(path_))) << "nothing is left behind";
}

// Rank 0 writes three whole files a save: none here but the manifest; folders twice.
INSTANTIATE_TEST_SUITE_P(Points, SaveKillTest,
                         testing::ValuesIn(KilledAndStopped<Place>({{"checkpoint.begin", 2},
                                                                    {"save.created", 2},
                                                                    {"model-file.write", 28},
                                                                    {"save.written", 2},
                                                                    {"model-file.publish", 3},
                                                                    {"model-file.publish", 4},
                                                                    {"file.write", 2},
                                                                    {"file.sync", 2},
                                                                    {"folder.sync", 3},
                                                                    {"checkpoint.rename", 2},
                                                                    {"checkpoint.renamed", 2, true},
                                                                    {"folder.sync", 4, true},
                                                                    {"checkpoint.published", 2,
                                                                     true}})),
                         NameOf);

class BackgroundSaveKillTest : public CheckpointKillTest {};

// An executor dies while its thread writes: training continues, the old checkpoint stays.
TEST_P(BackgroundSaveKillTest, LeavesTheOldCheckpointAndTrainingGoesOn) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(SaveUntilDone(&team, path_));
  ASSERT_OK(team.TrainTo(2));
  SaveOptions options;
  options.in_background = true;
  for (const absl::Status& status :
       team.Run([&](Session* session) { return SaveCheckpoint(session, path_, {}, options); })) {
    // Another rank's executor may be dead already.
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::_));
    }
  }
  // Steps would copy what is to be taken from its place.
  if (GetParam().point != std::string("save.taking")) {
    ASSERT_OK(team.TrainTo(6));
  }
  for (const absl::Status& status : team.Run([](Session* session) { return AwaitSave(session); }))
    EXPECT_FALSE(status.ok());
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path_));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, 1);
  ASSERT_OK(team.TrainTo(7));
  RenewExecutors();
  ASSERT_OK(SaveUntilDone(&team, path_));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(path_));
  EXPECT_EQ(manifest.step, 7);
  // The same steps without a save, at which nobody dies.
  ASSERT_OK_AND_ASSIGN(TrainerTeam undisturbed, OpenTeam("undisturbed"));
  ASSERT_OK(undisturbed.TrainTo(7));
  EXPECT_EQ(Values(&team), Values(&undisturbed));
}

INSTANTIATE_TEST_SUITE_P(Points, BackgroundSaveKillTest,
                         testing::ValuesIn(KilledAndStopped<Place>(
                             {{"save.created", 2}, {"save.written", 2}, {"checkpoint.rename", 2}})),
                         NameOf);

// While the version is read in place, and while a step copies what is not taken yet: all of it,
// since rank 0 holds before anything is written.
constexpr char kNothingIsTaken[] = ",save.created=hold@2";
INSTANTIATE_TEST_SUITE_P(Versions, BackgroundSaveKillTest,
                         testing::Values(Place{"save.taking", 1, false, "kill"},
                                         Place{"save.taking", 1, false, "stop"},
                                         Place{"save.copy", 1, false, "kill", kNothingIsTaken},
                                         Place{"save.copy", 1, false, "stop", kNothingIsTaken}),
                         NameOf);

class LoadCheckpointKillTest : public CheckpointKillTest {};

TEST_P(LoadCheckpointKillTest, LeavesTheOldStateOrTheCheckpointsOnAllRanks) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<float> saved = Values(&team);
  ASSERT_OK(SaveUntilDone(&team, path_));
  ASSERT_OK(team.TrainTo(3));
  const std::vector<float> trained = Values(&team);
  // Where a new executor, which repeats the update, passes by, each dies the second time.
  const bool writes_first = GetParam().point == std::string("write.before-publish");
  if (writes_first) {
    ASSERT_OK(team.RunAll([](Session* session) {
      return session->WriteParameters({}, [](int, int, ::tessera::Values) {});
    }));
  }
  for (const absl::Status& status :
       team.Run([&](Session* session) { return LoadCheckpoint(session, path_).status(); })) {
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::_));
    }
  }
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  const bool loaded = team.session(0)->next_step() == 3;
  if (GetParam().there) {
    EXPECT_TRUE(loaded);
  }
  ASSERT_OK(team.RunAll([&](Session* session) -> absl::Status {
    EXPECT_EQ(session->next_step(), loaded ? 3 : 4);
    EXPECT_EQ(session->num_writes(), (loaded ? 1 : 0) + (writes_first ? 1 : 0));
    ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
    EXPECT_EQ(progress.update_counts[0], loaded ? 2 : 3);
    return absl::OkStatus();
  }));
  EXPECT_EQ(Values(&team), loaded ? saved : trained);
  // Moments and counts are those of the values: the same step gives the same bits.
  ASSERT_OK(team.TrainTo(3));
  EXPECT_EQ(Values(&team), trained);
}

class RefusedLoadKillTest : public CheckpointKillTest {};

// They have published what they read, and die before they have taken it back.
TEST_P(RefusedLoadKillTest, LeavesWhatTrainersHad) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam("toy"));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(SaveUntilDone(&team, path_));
  ASSERT_OK(team.TrainTo(3));
  const std::vector<float> trained = Values(&team);
  FlipBit(path_ + "/optimizer.safetensors", -1, 0);
  int num_aborted = 0;
  for (const absl::Status& status :
       team.Run([&](Session* session) { return LoadCheckpoint(session, path_).status(); }))
    num_aborted += absl::IsAborted(status) ? 1 : 0;
  EXPECT_GT(num_aborted, 0);
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  EXPECT_EQ(Values(&team), trained);
  EXPECT_EQ(team.session(0)->next_step(), 4);
  ASSERT_OK(team.TrainTo(4));
}

INSTANTIATE_TEST_SUITE_P(
    Points, RefusedLoadKillTest,
    testing::ValuesIn(KilledAndStopped<Place>({{"load.take-back", 1}, {"load.read", 7}})), NameOf);

INSTANTIATE_TEST_SUITE_P(
    Points, LoadCheckpointKillTest,
    testing::ValuesIn(KilledAndStopped<Place>({{"load.read", 1},
                                               {"load.read", 5},
                                               {"write.before-vote", 1},
                                               {"write.after-vote", 1},
                                               {"write.after-decision", 1, true},
                                               {"write.before-publish", 2, true}})),
    NameOf);

}  // namespace
}  // namespace tessera
