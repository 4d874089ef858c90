#include "tests/conformance/fsdp/chain_model.h"

#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace tessera::testing_support {

ChainImpl::ChainImpl(int num_blocks) : order(num_blocks) {
  scale = register_parameter("scale", torch::linspace(0.5, 1.5, 5));
  for (int i = 0; i < num_blocks; ++i)
    blocks.push_back(register_module(absl::StrCat("block", i), std::make_shared<Block>()));
  std::iota(order.begin(), order.end(), 0);
}

torch::Tensor ChainImpl::forward(torch::Tensor x) {
  x = x * scale;
  for (const int i : order) x = blocks[i]->forward(x);
  return x;
}

torch::Tensor ChainLoss(Chain& model, int64_t step, int rank, int micro_batch) {
  const torch::Tensor x =
      torch::sin(torch::arange(15).view({3, 5}) * (step + 2.0) + 5.0 * rank + 0.7 * micro_batch);
  return model.forward(x).square().mean();
}

Values CopyOf(const torch::nn::Module& module) {
  Values copies;
  for (const auto& item : module.named_parameters())
    copies[item.key()] = item.value().detach().clone();
  return copies;
}

void ChainTest::SetUp() {
  torch::set_num_threads(1);
  LocalCluster::Options options;
  options.num_devices = 64;
  auto cluster = LocalCluster::Start(options);
  ASSERT_OK(cluster);
  cluster_ = *std::move(cluster);
}

SessionOptions ChainTest::OptionsFor(const std::string& job, int rank) const {
  SessionOptions options;
  options.coordinator_address = cluster_->coordinator_address();
  options.worker_address = cluster_->worker_address();
  options.job_id = job;
  options.rank = rank;
  options.config.world_size = kWorldSize;
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.groups[0].learning_rate = 0.5;
  options.config.collective_timeout = absl::Seconds(20);
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  return options;
}

std::shared_ptr<Chain> ChainTest::MakeChain(int num_blocks) {
  absl::MutexLock lock(&mu_);
  torch::manual_seed(7);
  return std::make_shared<Chain>(num_blocks);
}

void ChainTest::ForEachRank(const std::function<void(int)>& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorldSize; ++rank) ranks.emplace_back([&body, rank] { body(rank); });
  for (std::thread& rank : ranks) rank.join();
}

void ChainTest::OnEachRank(const std::string& job, const std::function<void(JobConfig*)>& configure,
                           const std::function<void(Trainer&)>& body) {
  ForEachRank([&](int rank) {
    Trainer trainer = {rank, MakeChain(), nullptr};
    SessionOptions options = OptionsFor(job, rank);
    if (configure) configure(&options.config);
    auto model = ShardedModel::Attach(trainer.chain, options);
    ASSERT_OK(model);
    trainer.model = *std::move(model);
    body(trainer);
  });
}

absl::Status ChainTest::TrainStep(Trainer& trainer) {
  return trainer.model->RunStep([&] {
    ChainLoss(*trainer.chain, trainer.model->next_step(), trainer.rank).backward();
    return trainer.model->Step();
  });
}

Values ChainTest::WholeParameters(Trainer& trainer) {
  Values values;
  SummonOptions options;
  options.writeback = false;
  EXPECT_OK(trainer.model->SummonFullParams(options, [&] {
    values = CopyOf(*trainer.chain);
    return absl::OkStatus();
  }));
  return values;
}

void ChainTest::ExpectSameBits(const Values& values, const Values& expected,
                               const std::string& what) {
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::equal(values.at(name), tensor)) << what << ": " << name;
}

}  // namespace tessera::testing_support
