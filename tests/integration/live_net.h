// A model for tests of what clients read of it: trained by ranks that are threads of the test, in a
// job of two param groups whose numbers change from step to step. A test fixture.
#ifndef TESSERA_TESTS_INTEGRATION_LIVE_NET_H_
#define TESSERA_TESTS_INTEGRATION_LIVE_NET_H_

#include <torch/nn/modules/batchnorm.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

struct LiveLayerImpl : torch::nn::Module {
  LiveLayerImpl() : linear(register_module("linear", torch::nn::Linear(3, 3))) {
    bend = register_parameter("bend", torch::full({1, 3}, 0.5));  // Of fewer rows than ranks.
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(linear->forward(x));
    return uses_bend ? x * bend : x;
  }
  torch::nn::Linear linear;
  torch::Tensor bend;
  bool uses_bend = true;
};

// Tied weights, a parameter without dimensions, a frozen one, and buffers of two dtypes, one of
// which a batch norm's kernels write to.
struct LiveNetImpl : torch::nn::Module {
  LiveNetImpl() {
    table = register_parameter("table", torch::randn({5, 3}) * 0.3);
    register_parameter("output", table);
    scale = register_parameter("scale", torch::tensor(0.75));
    frozen = register_parameter("frozen", torch::randn({4}), /*requires_grad=*/false);
    first = register_module("first", std::make_shared<Sharded<LiveLayerImpl>>());
    second = register_module("second", std::make_shared<Sharded<LiveLayerImpl>>());
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    seen = register_buffer("seen", torch::zeros({}, torch::kInt64));
  }
  torch::Tensor forward(torch::Tensor rows) {
    {
      const torch::NoGradGuard no_grad;
      if (is_training()) seen += rows.size(0);
    }
    const torch::Tensor x = norm->forward(torch::embedding(table, rows) * scale);
    return torch::matmul(second->forward(first->forward(x)), table.t()) + frozen.sum();
  }
  torch::Tensor table, scale, frozen, seen;
  std::shared_ptr<Sharded<LiveLayerImpl>> first, second;
  torch::nn::BatchNorm1d norm{nullptr};
};
using LiveNet = Sharded<LiveNetImpl>;

class LiveNetTest : public ::testing::Test {
 public:
  struct Rank {
    int rank = 0;
    std::shared_ptr<LiveNet> net;
    std::unique_ptr<ShardedModel> model;
  };
  struct Job {
    int world_size = 2;
    int num_devices = 2;  // Of each worker.
    Strategy strategy = Strategy::kFullShard;
    int group_size = 0;
    OptimizerKind optimizer = OptimizerKind::kAdamW;
  };

 protected:
  // With as many workers as the job needs.
  void Start(const Job& job) {
    // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
    static const auto* const last = new grpc::CompletionQueue();
    ASSERT_NE(last, nullptr);
    torch::set_num_threads(1);
    job_ = job;
    LocalCluster::Options options;
    options.num_devices = job.num_devices;
    options.num_workers = (job.world_size + job.num_devices - 1) / job.num_devices;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }

  // The same values at each call.
  std::shared_ptr<LiveNet> MakeNet() {
    absl::MutexLock lock(&seed_mu_);  // libtorch's seed is the process's.
    torch::manual_seed(11);
    return std::make_shared<LiveNet>();
  }

  // Runs `body` as each rank, attached.
  void OnEachRank(const std::function<void(Rank&)>& body) {
    std::vector<std::thread> ranks;
    for (int number = 0; number < job_.world_size; ++number) {
      ranks.emplace_back([&, number] {
        Rank rank = {number, MakeNet(), nullptr};
        ASSERT_OK_AND_ASSIGN(rank.model, ShardedModel::Attach(rank.net, OptionsOf(number)));
        body(rank);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }

  // The numbers of this step differ from those of all others.
  static absl::Status Step(Rank* rank) {
    return rank->model->RunStep([&]() -> absl::Status {
      const int64_t step = rank->model->next_step();
      const torch::Tensor rows = torch::remainder(torch::arange(8) + step + 3 * rank->rank, 5);
      rank->net->forward(rows).square().mean().backward();
      StepOptions options;
      const std::vector<ParamGroup>& groups = rank->model->session().config().groups;
      options.groups.assign(groups.begin(), groups.end());
      options.groups[1].learning_rate = 0.01 / static_cast<double>(step);
      return rank->model->StepWithResult(options).status();
    });
  }

  const Job& job() const { return job_; }
  std::string coordinator() const { return cluster_->coordinator_address(); }
  std::vector<std::string> workers() const {
    std::vector<std::string> addresses;
    for (int first = 0; first < job_.world_size; first += job_.num_devices)
      addresses.push_back(cluster_->worker_address(first / job_.num_devices));
    return addresses;
  }

 private:
  SessionOptions OptionsOf(int rank) const {
    SessionOptions options;
    options.coordinator_address = cluster_->coordinator_address();
    options.worker_address = cluster_->worker_address(rank / job_.num_devices);
    options.job_id = "live";
    options.rank = rank;
    options.config.world_size = job_.world_size;
    options.config.strategy = job_.strategy;
    options.config.shard_group_size = job_.group_size;
    options.config.optimizer = job_.optimizer;
    options.config.groups.resize(2);
    options.config.groups[0].momentum = job_.optimizer == OptimizerKind::kSgd ? 0.9 : 0;
    options.config.groups[1] = options.config.groups[0];
    options.config.groups[1].weight_decay = 0.125;
    options.config.groups[1].parameter_names = {"first.bend", "second.linear.weight", "scale"};
    options.attach_timeout = absl::Seconds(60);
    options.operation_timeout = absl::Seconds(120);
    return options;
  }

  Job job_;
  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex seed_mu_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_INTEGRATION_LIVE_NET_H_
