// The coordinator's journal is another one than before: of another cluster, lost, or an older copy.
// Real processes; whatever happens no shard is freed, and the final model is the same bytes as that
// of an undisturbed run.
#include <signal.h>

#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;

// Whether the job is on two workers.
class LostJournalTest : public ProcessCluster, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ProcessCluster::SetUp();
    split_ = GetParam();
  }
  // Runs into the middle of the job, which cannot end before Resume().
  void StartHalfRun() {
    ASSERT_FALSE(UndisturbedModel().empty());
    pause_at_ = 2 * kSteps / 3;
    StartCoordinator();
    StartWorker();
    if (split_) StartSecondWorker();
    for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
    AwaitStep(0, kSteps / 3);
  }
  void KillCoordinator() {
    coordinator_->Kill(SIGKILL);
    coordinator_->Wait();
  }
  void StartCoordinatorWith(const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"coordinator/tessera-coordinator",
                                     "--listen=" + coordinator_address()};
    args.insert(args.end(), flags.begin(), flags.end());
    auto started = demo::ChildProcess::Start(args, folder_ + "/coordinator.log");
    ASSERT_OK(started);
    coordinator_ = *std::move(started);
  }
  std::vector<std::string> WorkerLogs() const {
    std::vector<std::string> logs = {ReadFile(folder_ + "/worker.log")};
    if (split_) logs.push_back(ReadFile(folder_ + "/second.log"));
    return logs;
  }
  void AwaitLogs(const std::string& text) {
    EXPECT_TRUE(Eventually([&] {
      for (const std::string& log : WorkerLogs()) {
        if (!absl::StrContains(log, text)) return false;
      }
      return true;
    })) << text;
  }
  void RemoveJournal() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (absl::StartsWith(entry.path().filename().string(), "journal"))
        std::filesystem::remove(entry.path());
    }
  }
  // As the workers' logs name it.
  std::string Cluster() const {
    const std::string log = ReadFile(folder_ + "/worker.log"), before = "joins cluster ";
    const size_t at = log.find(before);
    return at == std::string::npos ? "" : log.substr(at + before.size(), 32);
  }
  void ExpectFinishesAsIfUndisturbed() {
    Resume();
    EXPECT_EQ(Finish(), UndisturbedModel());
    for (const std::string& log : WorkerLogs()) EXPECT_FALSE(absl::StrContains(log, "dropped"));
  }
};

TEST_P(LostJournalTest, CoordinatorOfAnotherClusterAtTheAddressIsNotObeyed) {
  StartHalfRun();
  KillCoordinator();
  StartCoordinatorWith({"--ephemeral"});
  AwaitLogs("holds jobs of cluster " + Cluster());
  KillCoordinator();
  StartCoordinator();
  ExpectFinishesAsIfUndisturbed();
}

TEST_P(LostJournalTest, NewJournalOfTheClusterTakesTheJobOverFromItsWorkers) {
  StartHalfRun();
  KillCoordinator();
  RemoveJournal();
  StartCoordinatorWith({"--journal=" + folder_ + "/journal", "--cluster-id=" + Cluster()});
  AwaitLogs("epoch 2 starts after step ");
  // And it is a journal as any other: a restart knows the job.
  KillCoordinator();
  StartCoordinator();
  ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/0"), SIGKILL), 0);
  AwaitLogs("epoch 3 starts after step ");
  ExpectFinishesAsIfUndisturbed();
}

TEST_P(LostJournalTest, OlderCopyOfTheJournalTakesTheLaterEpochOver) {
  StartHalfRun();
  KillCoordinator();
  std::map<std::string, std::string> copy;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (absl::StartsWith(entry.path().filename().string(), "journal"))
      copy[entry.path().string()] = ReadFile(entry.path().string());
  }
  StartCoordinator();
  for (const int epoch : {2, 3}) {
    ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/0"), SIGKILL), 0);
    AwaitLogs(absl::StrCat("epoch ", epoch, " starts after step "));
  }
  KillCoordinator();
  RemoveJournal();
  for (const auto& [path, bytes] : copy) {
    FILE* file = fopen(path.c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    ASSERT_EQ(fclose(file), 0);
  }
  // The workers have heard of more, so that it has to be said that the rest is lost.
  StartCoordinatorWith({"--journal=" + folder_ + "/journal"});
  AwaitLogs("--older-journal");
  KillCoordinator();
  StartCoordinatorWith({"--journal=" + folder_ + "/journal", "--older-journal"});
  AwaitLogs("epoch 4 starts after step ");
  ExpectFinishesAsIfUndisturbed();
}

INSTANTIATE_TEST_SUITE_P(OnOneAndOnTwoWorkers, LostJournalTest, testing::Bool());

}  // namespace
}  // namespace tessera
