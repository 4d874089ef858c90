// Two clusters of this process, one on an in-process fake GPU (fake_gpu.h) and one on the host,
// for tests that a job is the same on both. A test fixture.
#ifndef TESSERA_TESTS_TESTING_GPU_CLUSTERS_H_
#define TESSERA_TESTS_TESTING_GPU_CLUSTERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/trainer_team.h"
#include "worker/device/rank_device.h"

namespace tessera::testing_support {

// All that a job has, whatever its units, ranks and device.
struct JobState {
  std::map<std::string, std::vector<double>> tensors;  // "w"; "w/1" is its first moment.
  std::map<std::string, int64_t> update_counts;
  int64_t step = 0;

  bool operator==(const JobState& other) const {
    return tensors == other.tensors && update_counts == other.update_counts && step == other.step;
  }
};
absl::StatusOr<JobState> ReadJobState(Session* session);
// Rank 0's view; a failed check of the test where there is none.
JobState StateOf(TrainerTeam* team);

class GpuClusters : public testing::Test {
 protected:
  void SetUp() override;

  // A job of the toy model with frozen parameters, of a name of its own; and where it is.
  SessionOptions Job(int world_size);
  static SessionOptions On(const LocalCluster& cluster, const SessionOptions& job);
  // As TrainToy, with gradients where the team's ranks are.
  absl::Status Train(TrainerTeam* team, int64_t last_step);
  RankDevice* DeviceOf(Session* session) const;

  std::unique_ptr<LocalCluster> on_host_, on_gpu_;
  std::unique_ptr<RankDevice> gpu_, host_;
  int num_jobs_ = 0;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_GPU_CLUSTERS_H_
