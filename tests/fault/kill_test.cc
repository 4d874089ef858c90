// SIGKILL of each kind of process in the middle of a run of real processes: the final model is the
// same bytes as that of an undisturbed run, and nothing is left behind.
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/demo/child_process.h"

namespace tessera {
namespace {

using demo::ChildProcess;

constexpr int kWorldSize = 3;
constexpr int64_t kSteps = 30;
constexpr absl::Duration kDeadline = absl::Seconds(20);

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A process that ended has no command line, even before its parent took notice.
std::string CommandLine(int pid) { return ReadFile(absl::StrCat("/proc/", pid, "/cmdline")); }

// Executors that `worker_pid` started and that still run: label and pid.
std::map<std::string, int> ExecutorsOf(int worker_pid) {
  std::map<std::string, int> executors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    int pid;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string command = CommandLine(pid);
    const bool child = absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/status")),
                                         absl::StrCat("PPid:\t", worker_pid, "\n"));
    const size_t label = command.find("--label=");
    if (child && label != std::string::npos) executors[command.substr(label + 8).c_str()] = pid;
  }
  return executors;
}

class KillTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-kill-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    trainers_.clear();
    worker_.reset();
    coordinator_.reset();
    if (HasFailure()) {
      for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        if (absl::EndsWith(entry.path().string(), ".log")) {
          fprintf(stderr, "--- %s\n%s", entry.path().c_str(),
                  ReadFile(entry.path().string()).c_str());
        }
      }
    }
    std::filesystem::remove_all(folder_);
  }

  void StartCoordinator() {
    unlink((folder_ + "/port").c_str());
    auto started = ChildProcess::Start(
        {"coordinator/tessera-coordinator", absl::StrCat("--listen=127.0.0.1:", port_),
         "--port-file=" + folder_ + "/port", "--journal=" + folder_ + "/journal"},
        folder_ + "/coordinator.log");
    ASSERT_OK(started);
    coordinator_ = *std::move(started);
    ASSERT_TRUE(
        Eventually([this] { return absl::SimpleAtoi(ReadFile(folder_ + "/port"), &port_); }));
  }
  void StartWorker(const std::string& executor_faults = "") {
    std::vector<std::string> args = {
        "worker/tessera-worker",   absl::StrCat("--coordinator=127.0.0.1:", port_),
        "--worker-id=w",           absl::StrCat("--devices=", kWorldSize),
        "--socket-dir=" + folder_, "--executor-binary=worker/tessera-executor"};
    if (!executor_faults.empty()) args.push_back("--executor-fault-points=" + executor_faults);
    auto started = ChildProcess::Start(args, folder_ + "/worker.log");
    ASSERT_OK(started);
    worker_ = *std::move(started);
  }
  void StartTrainer(int rank, bool replace = false) {
    std::vector<std::string> args = {"tests/fault/toy_trainer",
                                     absl::StrCat("--coordinator=127.0.0.1:", port_),
                                     absl::StrCat("--worker=unix:", folder_, "/worker.sock"),
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--world-size=", kWorldSize),
                                     absl::StrCat("--steps=", kSteps),
                                     "--save=" + model_path()};
    if (replace) args.push_back("--replace");
    auto started = ChildProcess::Start(args, folder_ + "/trainer.log");
    ASSERT_OK(started);
    trainers_.resize(kWorldSize);
    trainers_[rank] = *std::move(started);
  }
  void StartAll(const std::string& executor_faults = "") {
    StartCoordinator();
    StartWorker(executor_faults);
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  }

  // Waits until `rank` begins `step`.
  void AwaitStep(int rank, int64_t step) {
    const bool begun = Eventually([&] {
      for (const std::string& line : trainers_[rank]->ReadLines()) {
        int64_t number;
        if (absl::StartsWith(line, "step ") && absl::SimpleAtoi(line.substr(5), &number)) {
          last_step_ = std::max(last_step_, number);
        }
      }
      return last_step_ >= step || !trainers_[rank]->running();
    });
    ASSERT_TRUE(begun && last_step_ >= step) << "rank " << rank << " never began step " << step;
  }
  // The final model's bytes.
  std::string Finish() {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      EXPECT_TRUE(Eventually([&] {
        (void)trainers_[rank]->ReadLines();
        return !trainers_[rank]->running();
      }));
      EXPECT_EQ(trainers_[rank]->Wait(), 0) << "rank " << rank;
    }
    return ReadFile(model_path());
  }
  // The wait looks again every millisecond; what it waits for is another process.
  static bool Eventually(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (absl::Now() < deadline) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  std::string model_path() const { return folder_ + "/model.safetensors"; }

  // Of a run without failures; made once for all tests.
  static const std::string& Undisturbed() {
    static const std::string* const model = new std::string([] {
      class Run : public KillTest {
       public:
        void TestBody() override {}
        std::string Go() {
          SetUp();
          StartAll();
          std::string model = Finish();
          TearDown();
          return model;
        }
      };
      return Run().Go();
    }());
    return *model;
  }

  std::string folder_;
  int port_ = 0;
  int64_t last_step_ = 0;
  std::unique_ptr<ChildProcess> coordinator_, worker_;
  std::vector<std::unique_ptr<ChildProcess>> trainers_;
};

TEST_F(KillTest, KilledTrainerIsReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(Undisturbed().empty());
  StartAll();
  AwaitStep(1, kSteps / 3);
  trainers_[1]->Kill(SIGKILL);
  trainers_[1]->Wait();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), Undisturbed());
}

TEST_F(KillTest, KilledExecutorIsReplacedAndTheModelIsBitIdentical) {
  ASSERT_FALSE(Undisturbed().empty());
  StartAll();
  AwaitStep(0, kSteps / 3);
  const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
  ASSERT_EQ(executors.count("toy/2"), 1);
  ASSERT_EQ(kill(executors.at("toy/2"), SIGKILL), 0);
  EXPECT_EQ(Finish(), Undisturbed());
}

TEST_F(KillTest, KilledCoordinatorRestartsWhileStepsGoOnAndTheModelIsBitIdentical) {
  ASSERT_FALSE(Undisturbed().empty());
  StartAll();
  AwaitStep(0, kSteps / 3);
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  StartCoordinator();
  EXPECT_EQ(Finish(), Undisturbed());
  EXPECT_FALSE(absl::StrContains(ReadFile(folder_ + "/worker.log"), " failed: "))
      << "no step was disturbed";
}

// An executor ends at each point of the step: before and after its vote, after the decision, and
// between the update and its publication. Every rank's executor does so at its eleventh step, and
// each one that replaces it at its own eleventh.
class KillPointTest : public KillTest, public testing::WithParamInterface<const char*> {};

TEST_P(KillPointTest, ExecutorKilledThereLeavesTheStepUndoneOrDoneEverywhere) {
  ASSERT_FALSE(Undisturbed().empty());
  StartAll(absl::StrCat(GetParam(), "=kill@11"));
  EXPECT_EQ(Finish(), Undisturbed());
  EXPECT_TRUE(absl::StrContains(ReadFile(folder_ + "/worker.log"), "killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(Points, KillPointTest,
                         testing::Values("step.before-vote", "step.after-vote",
                                         "step.after-decision", "step.before-publish"));

TEST_F(KillTest, NoProcessOrSocketOutlivesTheWorkerHoweverItEnds) {
  for (int signal : {SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    StartAll();
    AwaitStep(0, 3);
    const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
    EXPECT_EQ(executors.size(), kWorldSize);
    worker_->Kill(signal);
    worker_->Wait();
    for (const auto& [label, pid] : executors) {
      EXPECT_TRUE(Eventually([pid = pid] { return CommandLine(pid).empty(); }))
          << "executor " << label << " is left";
    }
    for (int rank = 0; rank < kWorldSize; ++rank) {
      EXPECT_TRUE(Eventually([&] {
        (void)trainers_[rank]->ReadLines();
        return !trainers_[rank]->running();
      }));
      EXPECT_EQ(trainers_[rank]->Wait(), 1) << "a trainer whose worker is gone ends with an error";
    }
    if (signal == SIGTERM) {
      EXPECT_FALSE(std::filesystem::exists(folder_ + "/worker.sock"));
      EXPECT_FALSE(std::filesystem::exists(folder_ + "/descriptors.sock"));
    }
    TearDown();
    SetUp();
    port_ = 0;
    last_step_ = 0;
  }
}

}  // namespace
}  // namespace tessera
