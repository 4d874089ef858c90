#include "client/torch/torch_cluster.h"

#include <thread>
#include <vector>

#include "base/status_matchers.h"

namespace tessera {

void TorchCluster::SetUp() {
  LocalCluster::Options options;
  options.num_devices = 16;
  auto cluster = LocalCluster::Start(options);
  ASSERT_OK(cluster);
  cluster_ = *std::move(cluster);
}

SessionOptions TorchCluster::OptionsFor(int rank, int world_size) const {
  SessionOptions options;
  options.coordinator_address = cluster_->coordinator_address();
  options.worker_address = cluster_->worker_address();
  options.job_id = "torch";
  options.rank = rank;
  options.config.world_size = world_size;
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.groups[0].learning_rate = 0.5;
  options.config.groups[0].weight_decay = 0;
  options.config.collective_timeout = absl::Seconds(20);
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  return options;
}

std::shared_ptr<Net> TorchCluster::MakeNet() {
  torch::set_num_threads(1);
  absl::MutexLock lock(&seed_mu_);
  torch::manual_seed(7);
  return std::make_shared<Net>();
}

torch::Tensor TorchCluster::LossOf(Net& net, int64_t step, int rank) {
  const torch::Tensor x = torch::sin(torch::arange(12).view({4, 3}) * (step + 2.0) + 5.0 * rank);
  return net.forward(x).square().mean();
}

void TorchCluster::ForEachRank(int world_size, const std::function<void(int)>& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back([&body, rank] { body(rank); });
  for (std::thread& rank : ranks) rank.join();
}

void TorchCluster::OnEachRank(int world_size, const std::function<void(Trainer&)>& body,
                              const std::function<void(SessionOptions*)>& edit) {
  ForEachRank(world_size, [&](int rank) {
    Trainer trainer = {rank, MakeNet(), nullptr};
    SessionOptions options = OptionsFor(rank, world_size);
    if (edit) edit(&options);
    auto model = ShardedModel::Attach(trainer.net, options);
    ASSERT_OK(model);
    trainer.model = *std::move(model);
    body(trainer);
  });
}

std::map<std::string, torch::Tensor> TorchCluster::CopyOf(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> copies;
  for (const auto& item : module.named_parameters())
    copies[item.key()] = item.value().detach().clone();
  return copies;
}

std::map<std::string, torch::Tensor> TorchCluster::WholeParameters(Trainer& trainer) {
  std::map<std::string, torch::Tensor> copies;
  SummonOptions options;
  options.writeback = false;
  EXPECT_OK(trainer.model->SummonFullParams(options, [&] {
    copies = CopyOf(*trainer.net);
    return absl::OkStatus();
  }));
  return copies;
}

}  // namespace tessera
