#include "tests/testing/toy_cluster.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "tests/testing/toy_training.h"

namespace tessera::testing_support {

JobConfig ConfigFor(int world_size) {
  JobConfig config;
  config.world_size = world_size;
  config.groups[0].learning_rate = 0.01;
  config.groups[0].weight_decay = 0.1;
  config.collective_timeout = absl::Seconds(30);
  return config;
}

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  EXPECT_LE(worst, tolerance);
}

void ToyCluster::StartCluster(int num_devices) {
  LocalCluster::Options options;
  options.num_devices = num_devices;
  auto cluster = LocalCluster::Start(options);
  ASSERT_OK(cluster);
  cluster_ = *std::move(cluster);
}

SessionOptions ToyCluster::OptionsFor(int rank, const ModelSpec& model, const JobConfig& config,
                                      const std::string& job_id) {
  SessionOptions options;
  options.coordinator_address = cluster_->coordinator_address();
  options.worker_address = cluster_->worker_address();
  options.job_id = job_id;
  options.rank = rank;
  options.model = model;
  options.config = config;
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  return options;
}

void ToyCluster::ForEachRank(const ModelSpec& model, const JobConfig& config,
                             const std::function<void(Session*)>& body, const std::string& job_id) {
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < config.world_size; ++rank) {
    trainers.emplace_back([&, rank] {
      auto session = Session::Open(OptionsFor(rank, model, config, job_id));
      ASSERT_OK(session);
      body(session->get());
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
}

std::vector<float> ToyCluster::Train(const ModelSpec& model, const JobConfig& config, int64_t steps,
                                     int micro_batches, const std::string& job_id) {
  std::vector<float> result;
  ForEachRank(
      model, config,
      [&](Session* session) {
        ASSERT_OK(TrainToy(session, steps, nullptr, micro_batches));
        auto all = ReadAll(session);
        ASSERT_OK(all);
        if (session->rank() == 0) result = *std::move(all);
      },
      job_id);
  v1::DeleteJobRequest remove;
  remove.set_request_id(NewRequestId());
  remove.set_job_id(job_id);
  EXPECT_OK(DeleteJob({cluster_->coordinator_address()}, remove, absl::Now() + absl::Seconds(10)));
  return result;
}

}  // namespace tessera::testing_support
