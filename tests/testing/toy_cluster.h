// A cluster of this process and trainers of the toy model as threads, for tests of what a job's
// config does. A test fixture.
#ifndef TESSERA_TESTS_TESTING_TOY_CLUSTER_H_
#define TESSERA_TESTS_TESTING_TOY_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"

namespace tessera::testing_support {

// AdamW with weight decay.
JobConfig ConfigFor(int world_size);
// No element differs by more; there are some.
void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, float tolerance);

class ToyCluster : public testing::Test {
 protected:
  void StartCluster(int num_devices);
  SessionOptions OptionsFor(int rank, const ModelSpec& model, const JobConfig& config,
                            const std::string& job_id = "toy");
  // Runs `body` as each rank's trainer, on threads.
  void ForEachRank(const ModelSpec& model, const JobConfig& config,
                   const std::function<void(Session*)>& body, const std::string& job_id = "toy");
  // Trains and returns rank 0's view of the parameters; the job is deleted then.
  std::vector<float> Train(const ModelSpec& model, const JobConfig& config, int64_t steps,
                           int micro_batches = 1, const std::string& job_id = "toy");
  std::unique_ptr<LocalCluster> cluster_;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_TOY_CLUSTER_H_
