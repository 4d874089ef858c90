// A cluster of this process on an in-process fake GPU (fake_gpu.h), whose executors are processes, for
// tests that end them or break their device. A test fixture.
#ifndef TESSERA_TESTS_TESTING_GPU_PROCESS_CLUSTER_H_
#define TESSERA_TESTS_TESTING_GPU_PROCESS_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/gpu_clusters.h"
#include "tests/testing/trainer_team.h"
#include "worker/device/rank_device.h"

namespace tessera::testing_support {

class GpuProcessCluster : public testing::Test {
 protected:
  static constexpr int kWorldSize = 2;
  static constexpr int64_t kSteps = 20;

  // `faults`: of each executor, see base/fault_point.h; those of the driver are "cuda.MemcpyAsync".
  void StartCluster(const std::string& faults = "");
  // Of job "toy", with frozen parameters and clipping, unless it updates in backward.
  SessionOptions Options(bool offload, bool in_backward = false) const;
  // As TrainToyOn, all ranks.
  absl::Status Train(TrainerTeam* team, int64_t last_step);
  // As StateOf, also while executors end.
  JobState StateThroughFailures(TrainerTeam* team);
  // What a job on the host has after so many steps.
  static JobState Undisturbed(const SessionOptions& options, int64_t steps);
  // The executors' processes by label, once there is one for each rank.
  std::map<std::string, int> Executors() const;
  // The bytes of all memory of the GPU that this process holds, by descriptor.
  static std::map<int, std::string> GpuMemory();

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<RankDevice> gpu_;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_GPU_PROCESS_CLUSTER_H_
