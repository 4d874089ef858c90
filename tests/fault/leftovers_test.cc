// Whatever process ends, and however, nothing of it is left: no process, no descriptor or mapping
// in those that continue, no shared memory object with a name, no file outside the folder.
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ChildrenOf;
using testing_support::CommandLine;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::MappingsOf;
using testing_support::NumThreads;

// What the worker holds for its trainers and executors.
struct Held {
  std::multiset<std::string> memory;  // Descriptors of shared memory, by name.
  int sockets = 0;
  int mappings = 0;
};

Held HeldBy(int pid) {
  Held held;
  for (const auto& [fd, name] : DescriptorsOf(pid)) {
    if (absl::StartsWith(name, "/memfd:")) held.memory.insert(name);
    held.sockets += absl::StartsWith(name, "socket:");
  }
  for (const std::string& name : MappingsOf(pid))
    held.mappings += absl::StartsWith(name, "/memfd:");
  return held;
}

enum class Victim { kWorker, kExecutor, kTrainer };

struct Ending {
  const char* name;
  Victim victim;
  int signal;  // 0: a clean end.
};

class LeftoversTest : public ProcessCluster, public testing::WithParamInterface<Ending> {
 protected:
  void SetUp() override {
    // Orphans become this process's children, so none can hide.
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ProcessCluster::SetUp();
  }
  // Nothing of a running cluster has a name that could outlive it, but in its folder.
  void ExpectNoNamesOutsideTheFolder() {
    std::vector<int> pids = ChildrenOf(getpid());
    for (int executor : ChildrenOf(worker_->pid())) pids.push_back(executor);
    ASSERT_GE(pids.size(), 2 + 2 * kWorldSize);
    for (int pid : pids) {
      std::vector<std::string> names = MappingsOf(pid);
      for (const auto& [fd, name] : DescriptorsOf(pid)) names.push_back(name);
      for (const std::string& name : names) {
        EXPECT_FALSE(absl::StartsWith(name, "/dev/shm/") || absl::StartsWith(name, "/SYSV"))
            << CommandLine(pid) << " holds " << name;
        // A file that is deleted already has no name; ThreadSanitizer's runtime maps such a one.
        if (absl::EndsWith(name, " (deleted)")) continue;
        EXPECT_FALSE(absl::StartsWith(name, "/tmp/") && !absl::StartsWith(name, folder_) &&
                     !absl::StartsWith(name, std::filesystem::current_path().string()))
            << CommandLine(pid) << " holds " << name;
      }
    }
  }
  // Ends all that still runs, and waits for every last child and orphan.
  void ExpectNoOrphan() {
    trainers_.clear();
    worker_.reset();
    coordinator_.reset();
    EXPECT_TRUE(Eventually([] {
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      return waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
    })) << "a process is left: "
        << [] {
             std::string commands;
             for (int pid : ChildrenOf(getpid()))
               absl::StrAppend(&commands, CommandLine(pid), "; ");
             return commands;
           }();
  }
};

// The worker continues, and holds what it held before.
TEST_P(LeftoversTest, NothingIsLeftOfAProcessThatEnded) {
  pause_at_ = 3;  // Until all was looked at.
  StartAll();
  for (int rank = 0; rank < kWorldSize; ++rank) AwaitStep(rank, pause_at_);
  ExpectNoNamesOutsideTheFolder();
  const Held before = HeldBy(worker_->pid());
  const std::map<std::string, int> executors = ExecutorsOf(worker_->pid());
  ASSERT_EQ(executors.size(), kWorldSize);
  ASSERT_GE(before.memory.size(), 2 + 3 * kWorldSize);

  switch (GetParam().victim) {
    case Victim::kWorker:
      worker_->Kill(GetParam().signal);
      worker_->Wait();
      Resume();
      for (const auto& [label, pid] : executors) {
        EXPECT_TRUE(Eventually([pid = pid] { return CommandLine(pid).empty(); })) << label;
      }
      for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(AwaitEnd(rank), 1);
      break;
    case Victim::kExecutor: {
      const int pid = executors.at("toy/1");
      ASSERT_EQ(kill(pid, GetParam().signal), 0);
      Resume();
      Finish();
      EXPECT_TRUE(CommandLine(pid).empty());
      break;
    }
    case Victim::kTrainer:
      if (GetParam().signal != 0) {
        trainers_[1]->Kill(GetParam().signal);
        trainers_[1]->Wait();
        StartTrainer(1, /*replace=*/true);
      }
      Resume();
      Finish();
      break;
  }
  if (GetParam().victim != Victim::kWorker) {
    EXPECT_EQ(ExecutorsOf(worker_->pid()).size(), kWorldSize);
    EXPECT_TRUE(Eventually([&] { return HeldBy(worker_->pid()).memory == before.memory; }));
    const Held after = HeldBy(worker_->pid());
    EXPECT_EQ(after.mappings, before.mappings);
    EXPECT_TRUE(Eventually([&] { return HeldBy(worker_->pid()).sockets <= before.sockets; }));
  }
  ExpectNoOrphan();
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    const bool socket = absl::EndsWith(name, ".sock");
    EXPECT_TRUE(absl::EndsWith(name, ".log") || name == "port" || name == "resume" ||
                absl::StartsWith(name, "journal") || name == "model.safetensors" || socket)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Endings, LeftoversTest,
                         testing::Values(Ending{"WorkerTerminated", Victim::kWorker, SIGTERM},
                                         Ending{"WorkerKilled", Victim::kWorker, SIGKILL},
                                         Ending{"ExecutorTerminated", Victim::kExecutor, SIGTERM},
                                         Ending{"ExecutorKilled", Victim::kExecutor, SIGKILL},
                                         Ending{"TrainerDone", Victim::kTrainer, 0},
                                         Ending{"TrainerTerminated", Victim::kTrainer, SIGTERM},
                                         Ending{"TrainerKilled", Victim::kTrainer, SIGKILL}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
