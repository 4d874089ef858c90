// Updates in backward of a job on two workers, cut over all ranks or hybrid: the final model is the
// same bytes as with updates after the decision, whichever process is killed.
#include <signal.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ExecutorsOf;
using testing_support::FlightOp;
using testing_support::ReadFile;
using testing_support::ReadFlightLog;

constexpr int kUnits = 4;  // Of the toy trainer's model.

// Ranks 0 and 1 on "w", the others on "x".
class TwoWorkers : public ProcessCluster {
 protected:
  void Configure(int group_size, bool in_backward) {
    split_ = true;
    group_size_ = group_size;
    world_size_ = group_size == 0 ? 3 : 2 * group_size;
    on_second_ = world_size_ - 2;
    trainer_flags_ = {"--no-clipping"};
    if (in_backward) trainer_flags_.push_back("--optimizer-in-backward");
  }
  void StartBoth(const std::string& faults_of_x = "") {
    StartCoordinator();
    StartWorker();
    StartSecondWorker(faults_of_x);
    for (int rank = 0; rank < world_size_; ++rank) StartTrainer(rank);
  }
};

class OptimizerAfterwards : public TwoWorkers {
 public:
  void TestBody() override {}
  // What training gives. Made once for all tests of a process.
  static const std::string& Model(int group_size) {
    static std::map<int, std::string>* const models = new std::map<int, std::string>();
    const auto found = models->find(group_size);
    if (found != models->end()) return found->second;
    OptimizerAfterwards run;
    run.Configure(group_size, /*in_backward=*/false);
    run.SetUp();
    run.StartBoth();
    std::string model = run.Finish();
    run.TearDown();
    return models->emplace(group_size, std::move(model)).first->second;
  }
};

// Group size; 0: FULL_SHARD.
class OptimizerInBackwardHostsTest : public TwoWorkers, public testing::WithParamInterface<int> {
 protected:
  OptimizerInBackwardHostsTest() { Configure(GetParam(), /*in_backward=*/true); }

  // Updates of units in backward of the last step, and whether some were computed again after it.
  std::pair<int, bool> LastUpdates(const std::string& worker, int rank) {
    std::pair<int, bool> updates = {0, false};
    for (const FlightOp& op : ReadFlightLog(worker, "toy", rank)) {
      if (op.op != "update" || op.step != kSteps) continue;
      if (op.unit.empty()) updates.second = true;
      if (!op.unit.empty()) ++updates.first;
    }
    return updates;
  }
};

TEST_P(OptimizerInBackwardHostsTest, GivesTheBitsOfTheUpdateAfterItOnBothWorkers) {
  ASSERT_FALSE(OptimizerAfterwards::Model(GetParam()).empty());
  StartBoth();
  EXPECT_EQ(Finish(), OptimizerAfterwards::Model(GetParam()));
  EXPECT_EQ(LastUpdates(worker_address(), 0), std::pair(kUnits, false));
  EXPECT_EQ(LastUpdates("unix:" + folder_ + "/x/worker.sock", world_size_ - 1),
            std::pair(kUnits, false));
}

TEST_P(OptimizerInBackwardHostsTest, KilledExecutorOfEitherWorkerChangesNoBit) {
  ASSERT_FALSE(OptimizerAfterwards::Model(GetParam()).empty());
  pause_at_ = 2 * kSteps / 3;
  StartBoth();
  AwaitStep(0, kSteps / 3);
  ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/1"), SIGKILL), 0);
  AwaitStep(0, kSteps / 2);
  ASSERT_EQ(kill(ExecutorsOf(second_worker_->pid()).at("toy/2"), SIGKILL), 0);
  Resume();
  EXPECT_EQ(Finish(), OptimizerAfterwards::Model(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Groups, OptimizerInBackwardHostsTest, testing::Values(0, 2));

// The executors of one worker end among the updates of step 11, or around its decision; those of
// the other worker have guessed too, and continue.
class OptimizerInBackwardHostsKillPointTest
    : public TwoWorkers,
      public testing::WithParamInterface<std::tuple<int, const char*>> {};

TEST_P(OptimizerInBackwardHostsKillPointTest, StepIsUndoneOrDoneOnBothWorkersToTheSameBits) {
  const auto& [group_size, fault] = GetParam();
  ASSERT_FALSE(OptimizerAfterwards::Model(group_size).empty());
  Configure(group_size, /*in_backward=*/true);
  StartBoth(fault);
  EXPECT_EQ(Finish(), OptimizerAfterwards::Model(group_size));
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/second.log"), "killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(
    Points, OptimizerInBackwardHostsKillPointTest,
    testing::Combine(testing::Values(0, 2),
                     testing::Values("update.in-backward=kill@42", "update.in-backward=stop@42",
                                     "step.after-vote=kill@11", "step.before-publish=kill@11")));

}  // namespace
}  // namespace tessera
