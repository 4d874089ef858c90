// Readers of live state that hang, and processes that are killed while state is held or read: the
// final model is the same bytes as that of an undisturbed run.
#include <signal.h>

#include <atomic>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "shm/region.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/region_view.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::IsStopped;
using testing_support::MapRegionOf;
using testing_support::ReadFile;
using testing_support::VersionOf;

class LiveStateKillTest : public ProcessCluster {
 protected:
  // Runs up to a third, with rank 0's newest version held.
  void StartAndHold() {
    pause_at_ = 2 * kSteps / 3;
    StartAll();
    AwaitStep(0, kSteps / 3);
    group_ = MapRegionOf(worker_->pid(), "toy/group");
    ASSERT_TRUE(group_.valid());
    RankRecord& record = reinterpret_cast<GroupPage*>(group_.data())->ranks[0];
    hold_ = &record.hold;
    ASSERT_OK_AND_ASSIGN(held_, HoldNewest(hold_, record.applied_step));
  }

  Mapping group_;
  StateHold* hold_ = nullptr;
  int64_t held_ = 0;
};

TEST_F(LiveStateKillTest, HoldOfAReaderThatHangsIsTakenAwayAndTrainingGoesOn) {
  ASSERT_FALSE(UndisturbedModel().empty());
  collective_timeout_ = absl::Seconds(2);
  ASSERT_NO_FATAL_FAILURE(StartAndHold());
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
  EXPECT_FALSE(Release(hold_, held_)) << "the reader is not told that its copy is void";
  EXPECT_FALSE(absl::StrContains(ReadFile(folder_ + "/worker.log"), " failed: "))
      << "no epoch ended";
}

TEST_F(LiveStateKillTest, ExecutorKilledWhileItWaitsForAReaderLeavesTheVersionAsItIs) {
  ASSERT_FALSE(UndisturbedModel().empty());
  ASSERT_NO_FATAL_FAILURE(StartAndHold());
  const Mapping state = MapRegionOf(worker_->pid(), "toy/0/state");
  ASSERT_TRUE(state.valid());
  const std::string before = VersionOf(state, held_);
  ASSERT_TRUE(Eventually([&] { return hold_->changes.sleepers.load() > 0; }));
  const int killed = ExecutorsOf(worker_->pid()).at("toy/0");
  ASSERT_EQ(kill(killed, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const std::map<std::string, int> now = ExecutorsOf(worker_->pid());
    return now.count("toy/0") == 1 && now.at("toy/0") != killed;
  }));
  EXPECT_EQ(VersionOf(state, held_), before);
  EXPECT_TRUE(Release(hold_, held_));
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

TEST_F(LiveStateKillTest, ReadingsWhileTheCoordinatorRestartsAreWholeOrUnavailable) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = 2 * kSteps / 3;
  StartAll();
  AwaitStep(0, 3);
  std::atomic<bool> stop{false};
  std::atomic<int> readings{0};
  const std::string path = folder_ + "/get.safetensors";
  const std::string address = coordinator_address();
  const auto get = [&] {
    std::ostringstream out, err;
    const int exit_code =
        cli::RunCli({"get", "toy", "--out", path, "--coordinator", address}, {&out, &err, false});
    return exit_code == 0 ? "" : err.str();
  };
  std::thread reader([&] {
    while (!stop.load()) {
      const std::string error = get();
      EXPECT_TRUE(error.empty() || absl::StrContains(error, "UNAVAILABLE")) << error;
      if (error.empty()) readings.fetch_add(1);
    }
  });
  EXPECT_TRUE(Eventually([&] { return readings.load() > 1; }));
  coordinator_->Kill(SIGKILL);
  coordinator_->Wait();
  StartCoordinator();
  const int before = readings.load();
  EXPECT_TRUE(Eventually([&] { return readings.load() > before + 1; }));
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
  stop.store(true);
  reader.join();
  EXPECT_EQ(get(), "");
  EXPECT_EQ(ReadFile(path), UndisturbedModel());
  EXPECT_FALSE(absl::StrContains(ReadFile(folder_ + "/worker.log"), " failed: "))
      << "no step was disturbed";
}

TEST_F(LiveStateKillTest, DaemonStoppedWhileItCopiesForAReaderIsContinuedAndSoAreBoth) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = 2 * kSteps / 3;
  daemon_faults_ = "snapshot.copy=stop@1";
  StartAll();
  AwaitStep(0, 3);
  std::ostringstream out, err;
  int exit_code = -1;
  std::thread reader([&] {
    exit_code = cli::RunCli({"get", "toy", "--out", folder_ + "/get.safetensors", "--coordinator",
                             coordinator_address()},
                            {&out, &err, false});
  });
  EXPECT_TRUE(Eventually([&] { return IsStopped(worker_->pid()); })) << "it did not come there";
  worker_->Kill(SIGCONT);
  reader.join();
  EXPECT_TRUE(exit_code == 0 || absl::StrContains(err.str(), "UNAVAILABLE")) << err.str();
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

}  // namespace
}  // namespace tessera
