// A call of NCCL that never comes back takes its executor's process with it, and nothing else.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/gpu_process_cluster.h"

namespace tessera {
namespace {

using testing_support::FakeGpuMemory;
using testing_support::GpuProcessCluster;
using testing_support::MakeFakeGpuDevice;
using testing_support::TrainerTeam;

class GpuStuckNcclTest : public GpuProcessCluster {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    LocalCluster::Options options;
    options.num_workers = kWorldSize;
    options.executor_binary = "tests/testing/stuck_nccl_executor";
    options.executor_flags = {"--stuck-once=" + folder_ + "/stuck"};
    options.device_memory = FakeGpuMemory();
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    ASSERT_OK_AND_ASSIGN(gpu_, MakeFakeGpuDevice(0));
  }
  void TearDown() override {
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string folder_ = testing::TempDir() + "/stuck-nccl-XXXXXX";
};

TEST_F(GpuStuckNcclTest, ExecutorThatIsStuckInItsAbortEndsAndTheNextOneTrainsToTheSameBits) {
  const SessionOptions options = Options(/*offload=*/false);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options, {cluster_->worker_address(0),
                                                                     cluster_->worker_address(1)}));
  ASSERT_OK(Train(&team, kSteps));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/stuck"))
    names.push_back(entry.path().filename());
  ASSERT_THAT(names, testing::UnorderedElementsAre("other", testing::MatchesRegex("[0-9]+")));
  const int stuck = std::stoi(names[0] == "other" ? names[1] : names[0]);
  EXPECT_NE(kill(stuck, 0), 0) << "it still holds the device";
  for (const auto& [label, pid] : Executors()) EXPECT_NE(pid, stuck) << label;
  EXPECT_TRUE(StateThroughFailures(&team) == Undisturbed(options, kSteps));
}

}  // namespace
}  // namespace tessera
