// Processes of a job on two workers are killed while a put is offered or decided: ranks 0 and 1 are
// on "w", rank 2 on "x". The trainers learn nothing, so that the final model is what was put, or
// what there was before.
#include <signal.h>

#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;
using testing_support::ReadStored;
using testing_support::RunTessera;
using testing_support::StoredValues;
using testing_support::ToyModel;
using testing_support::WritePutFile;

class PutHostsKillTest : public ProcessCluster {
 protected:
  PutHostsKillTest() {
    split_ = true;
    trainer_flags_ = {"--learning-rate=0"};
    pause_at_ = kSteps / 2;
  }

  // Trainers wait in the middle of the run, and a put waits for their next step.
  void StartAndOffer(const std::string& faults_of_w = "", const std::string& faults_of_x = "") {
    StartCoordinator();
    StartWorker(faults_of_w);
    StartSecondWorker(faults_of_x);
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
    for (int rank = 0; rank < kWorldSize; ++rank) AwaitStep(rank, pause_at_);
    std::vector<TensorSpec> tensors;
    for (const UnitSpec& unit : ToyModel(4).units)
      tensors.insert(tensors.end(), unit.parameters.begin(), unit.parameters.end());
    const std::string path = folder_ + "/put.safetensors";
    WritePutFile(path, tensors);
    put_ = ReadStored(path);
    putter_ = std::thread([this, path, address = coordinator_address()] {
      result_ = RunTessera(address, {"put", "--job", "toy", "--from", path, "--wait", "60s"});
    });
    ASSERT_TRUE(Eventually([this] { return CountHolders() == kWorldSize; }));
  }
  void TearDown() override {
    Resume();
    if (putter_.joinable()) putter_.join();
    ProcessCluster::TearDown();
  }

  std::map<std::string, int> AllExecutors() const {
    std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
    executors.merge(ExecutorsOf(second_worker_->pid()));
    return executors;
  }
  // Executors that have the file of a put.
  int CountHolders() const {
    int count = 0;
    for (const auto& [label, pid] : AllExecutors()) {
      for (const auto& [fd, what] : DescriptorsOf(pid)) {
        if (absl::StartsWith(what, "/tmp/#") && absl::EndsWith(what, "(deleted)")) ++count;
      }
    }
    return count;
  }
  CliResult AwaitPut() {
    putter_.join();
    return result_;
  }
  StoredValues FinalModel() {
    EXPECT_FALSE(Finish().empty());
    return ReadStored(model_path());
  }

  StoredValues put_;
  std::thread putter_;
  CliResult result_;
};

TEST_F(PutHostsKillTest, ExecutorKilledWhileItIsOfferedTakesItAsItsSuccessor) {
  ASSERT_NO_FATAL_FAILURE(StartAndOffer());
  const int killed = AllExecutors().at("toy/2");
  ASSERT_EQ(kill(killed, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const std::map<std::string, int> now = AllExecutors();
    return now.count("toy/2") == 1 && now.at("toy/2") != killed && CountHolders() == kWorldSize;
  }));
  Resume();
  EXPECT_EQ(AwaitPut().exit_code, 0) << result_.err;
  EXPECT_EQ(FinalModel(), put_);
}

TEST_F(PutHostsKillTest, TrainerKilledWhileItIsOfferedIsReplacedAndGoesOnWithIt) {
  ASSERT_NO_FATAL_FAILURE(StartAndOffer());
  trainers_[1]->Kill(SIGKILL);
  trainers_[1]->Wait();
  Resume();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(AwaitPut().exit_code, 0) << result_.err;
  EXPECT_EQ(FinalModel(), put_);
}

TEST_F(PutHostsKillTest, CoordinatorKilledWhileItIsOfferedTakesItAwayFromAll) {
  ASSERT_NO_FATAL_FAILURE(StartAndOffer());
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  ASSERT_TRUE(Eventually([this] { return CountHolders() == 0; }));
  StartCoordinator();
  EXPECT_THAT(AwaitPut().err, HasSubstr("UNAVAILABLE"));
  Resume();
  const StoredValues model = FinalModel();
  for (const auto& [name, tensor] : put_) EXPECT_NE(model.at(name), tensor) << name;
  for (const char* log : {"/worker.log", "/second.log"})
    EXPECT_FALSE(absl::StrContains(ReadFile(folder_ + log), " failed: ")) << "a step was disturbed";
}

// The executors of one worker end at a point of the put, the other's do not. After the vote the
// other worker decides, and the one whose executors are gone must learn what.
class PutHostsKillPointTest : public PutHostsKillTest,
                              public testing::WithParamInterface<std::tuple<const char*, bool>> {};

TEST_P(PutHostsKillPointTest, PutIsOnBothWorkersOrOnNoneAndOnceDecidedOnBoth) {
  const auto& [point, on_second] = GetParam();
  const std::string faults = absl::StrCat(point, "=kill@1");
  ASSERT_NO_FATAL_FAILURE(StartAndOffer(on_second ? "" : faults, on_second ? faults : ""));
  Resume();
  const bool is_set = AwaitPut().exit_code == 0;
  const StoredValues model = FinalModel();
  // A vote may be lost with its rank. Then the others do not decide, and a put with which a rank
  // dies again and again is given up in the end.
  EXPECT_TRUE(is_set || point == std::string("put.after-vote")) << result_.err;
  for (const auto& [name, tensor] : put_) EXPECT_EQ(model.at(name) == tensor, is_set) << name;
  EXPECT_EQ(absl::StrContains(result_.err, "nothing was changed"), !is_set) << result_.err;
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + (on_second ? "/second.log" : "/worker.log")),
                                "killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(Points, PutHostsKillPointTest,
                         testing::Combine(testing::Values("put.after-vote", "put.after-decision"),
                                          testing::Bool()));

}  // namespace
}  // namespace tessera
