// Trainers of other users than the worker's: the owner of a job trains it to the same bits as the
// worker's user would, and nobody else does.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::Eventually;
using testing_support::ReadFile;

constexpr int kOwner = 65534, kOther = 65533;

class OtherUserTest : public ProcessCluster {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
    ProcessCluster::SetUp();
    ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
    // The owner's folder is made by its first save.
    std::filesystem::create_directories(folder_ + "/saves");
    coordinator_flags_ = {"--save-root=" + folder_ + "/saves/{owner}"};
    model_name_ = "/saves/65534/model.safetensors";
    trainer_uid_ = kOwner;
    debuggable_ = false;
  }
  std::string TrainersLog() const { return ReadFile(folder_ + "/trainer.log"); }
};

TEST_F(OtherUserTest, OwnerTrainsAndSavesToTheSameBits) {
  StartAll();
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_THAT(ReadFile(folder_ + "/worker.log"), HasSubstr("of user 65534"));
  EXPECT_EQ(std::filesystem::status(folder_ + "/saves/65534").permissions() &
                std::filesystem::perms::others_all,
            std::filesystem::perms::none);
}

TEST_F(OtherUserTest, ExecutorsEndBeforeTheWorkerWhereMemoryRunsOut) {
  pause_at_ = 5;
  StartAll();
  AwaitStep(0, 5);
  for (const auto& [label, pid] : testing_support::ExecutorsOf(worker_->pid()))
    EXPECT_EQ(ReadFile(absl::StrCat("/proc/", pid, "/oom_score_adj")), "500\n") << label;
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(OtherUserTest, TrainerThatDiesIsFollowedByAnotherOneOfItsUser) {
  StartAll();
  AwaitStep(1, 5);
  trainers_[1]->Kill(SIGKILL);
  trainers_[1]->Wait();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(OtherUserTest, TrainersSaveBelowTheOwnersFolderAlone) {
  model_name_ = "/saves/65533/model.safetensors";
  std::filesystem::create_directories(folder_ + "/saves/65533");
  StartAll();
  for (int rank = 0; rank < world_size_; ++rank) EXPECT_EQ(AwaitEnd(rank), 1);
  EXPECT_THAT(TrainersLog(), AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("--save-root"),
                                   HasSubstr("/saves/65534")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/saves/65533"));
}

TEST_F(OtherUserTest, LinkOutOfTheOwnersFolderLeadsNoSaveElsewhere) {
  std::filesystem::create_directory(folder_ + "/elsewhere");
  std::filesystem::create_directory(folder_ + "/saves/65534");
  std::filesystem::create_symlink(folder_ + "/elsewhere", folder_ + "/saves/65534/link");
  model_name_ = "/saves/65534/link/model.safetensors";
  StartAll();
  for (int rank = 0; rank < world_size_; ++rank) EXPECT_EQ(AwaitEnd(rank), 1);
  EXPECT_THAT(TrainersLog(), HasSubstr("which is " + folder_ + "/elsewhere/model.safetensors"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/elsewhere"));
}

TEST_F(OtherUserTest, AnotherUserThanTheOwnerIsRefusedByName) {
  StartCoordinator();
  StartWorker();
  pause_at_ = 5;
  for (int rank = 0; rank + 1 < world_size_; ++rank) StartTrainer(rank);
  ASSERT_TRUE(Eventually([&] {
    return ReadFile(folder_ + "/coordinator.log").find("CreateJob job='toy': OK") !=
           std::string::npos;
  }));
  trainer_uid_ = kOther;
  StartTrainer(world_size_ - 1);
  EXPECT_EQ(AwaitEnd(world_size_ - 1), 1);
  EXPECT_THAT(TrainersLog(),
              AllOf(HasSubstr("'uid:65533'"), HasSubstr("its owner is 'uid:65534'")));
  trainer_uid_ = kOwner;
  StartTrainer(world_size_ - 1);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

}  // namespace
}  // namespace tessera
