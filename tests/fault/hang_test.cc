// Executors that hang in the middle of a step and are not stopped, as in a driver's call that does
// not return: ranks 0 and 1 are on "w", rank 2 on "x". The late rank is named, and the final model
// is the same bytes as that of an undisturbed run.
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ReadFile;

class HangTest : public ProcessCluster {
 protected:
  HangTest() {
    split_ = true;
    collective_timeout_ = absl::Seconds(2);
  }
  void Start(const std::string& faults_of_w, const std::string& faults_of_x) {
    StartCoordinator();
    StartWorker(faults_of_w);
    StartSecondWorker(faults_of_x);
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  }
};

// At each of these, after two thirds of the run: the executor that follows does not come so far.
class HangPointTest : public HangTest, public testing::WithParamInterface<const char*> {};

TEST_P(HangPointTest, ExecutorThatHangsWhileOthersWaitIsNamedAndReplaced) {
  ASSERT_FALSE(UndisturbedModel().empty());
  Start("", GetParam());
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/worker.log"), "waited for ranks 2 of 3"));
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/second.log"),
                                "did not leave its epoch for 5s: it is killed"));
}

INSTANTIATE_TEST_SUITE_P(Points, HangPointTest,
                         testing::Values("engine.operation=hold@301", "step.before-vote=hold@21",
                                         "step.before-publish=hold@21", "reduce.started=hold@81"));

// No rank that others wait for.
TEST_F(HangTest, ExecutorsThatAllHangAreNamedAndReplaced) {
  ASSERT_FALSE(UndisturbedModel().empty());
  collective_timeout_ = absl::Seconds(1);
  Start("step.before-vote=hold@21", "step.before-vote=hold@21");
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/worker.log"),
                                "is at the operation step for more than 8s: it is killed"));
}

}  // namespace
}  // namespace tessera
