// A coordinator whose disk is full, a real one of a few MiB, and which dies: the next one starts,
// and jobs outlive the failures that come. Real processes; the final model is the same bytes as
// that of an undisturbed run.
#include <signal.h>

#include <filesystem>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/small_disk.h"

namespace tessera {
namespace {

using testing_support::ExecutorsOf;

class FullJournalDiskTest : public ProcessCluster, public testing::WithParamInterface<int> {
 protected:
  static void SetUpTestSuite() { own_namespace_ = testing_support::EnterOwnMountNamespace(); }
  void SetUp() override {
    ProcessCluster::SetUp();
    if (!own_namespace_.ok()) GTEST_SKIP() << "no mount namespace: " << own_namespace_;
    ASSERT_TRUE(std::filesystem::create_directory(folder_ + "/disk"));
    if (const absl::Status status = disk_.Mount(folder_ + "/disk", 16 << 20); !status.ok())
      GTEST_SKIP() << "no file system of its own: " << status;
    journal_name_ = "/disk/journal";
  }
  void TearDown() override {
    coordinator_.reset();
    disk_.Unmount();
    ProcessCluster::TearDown();
  }
  static absl::Status own_namespace_;
  testing_support::SmallDisk disk_;
};

absl::Status FullJournalDiskTest::own_namespace_;

// By the signal that ends the coordinator.
TEST_P(FullJournalDiskTest, CoordinatorStartsOnAFullDiskAndLeadsAJobThroughFailures) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = 2 * kSteps / 3;
  StartAll();
  AwaitStep(0, kSteps / 3);
  ASSERT_OK(disk_.Fill());
  coordinator_->Kill(GetParam());
  coordinator_->Wait();
  StartCoordinator();
  ASSERT_EQ(kill(ExecutorsOf(worker_->pid()).at("toy/0"), SIGKILL), 0);
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel());
}

INSTANTIATE_TEST_SUITE_P(Ends, FullJournalDiskTest, testing::Values(SIGTERM, SIGKILL));

}  // namespace
}  // namespace tessera
