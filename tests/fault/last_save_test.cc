// The job's trainers save together at its end, and leave. One of them, or its executor, is killed
// when others have left already: nobody is there to save with, and nothing has to be saved again.
#include <sys/stat.h>

#include <cstdint>

#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ReadFile;

class LastSaveTest : public ProcessCluster {
 protected:
  // Of the saved file: another one if it is saved again.
  uint64_t SavedInode() const {
    struct stat file = {};
    EXPECT_EQ(stat(model_path().c_str(), &file), 0);
    return file.st_ino;
  }
};

TEST_F(LastSaveTest, SuccessorOfATrainerThatDiesAfterItWaitsForNobody) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  StartWorker();
  StartTrainer(0);
  trainer_flags_ = {"--fault-points=toy.saved=kill@1"};
  StartTrainer(1);
  trainer_flags_.clear();
  StartTrainer(2);
  for (const int rank : {0, 2}) EXPECT_EQ(AwaitEnd(rank), 0) << "rank " << rank;
  ASSERT_NE(AwaitEnd(1), 0);
  const uint64_t saved = SavedInode();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(AwaitEnd(1), 0);
  EXPECT_EQ(SavedInode(), saved);
  EXPECT_EQ(ReadFile(model_path()), UndisturbedModel());
}

TEST_F(LastSaveTest, RankWhoseExecutorDiesBeforeItNotesItLearnsOfItFromTheOtherWorker) {
  ASSERT_FALSE(UndisturbedModel().empty());
  split_ = true;  // Rank 2 alone is on the second one.
  StartCoordinator();
  StartWorker();
  StartSecondWorker(/*executor_faults=*/"engine.saved=kill@1");
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  EXPECT_EQ(Finish(), UndisturbedModel());
}

}  // namespace
}  // namespace tessera
