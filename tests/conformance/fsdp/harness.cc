#include "tests/conformance/fsdp/harness.h"

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/worker_client.h"

namespace tessera::conformance {

Tensors CopyOf(const torch::nn::Module& module) {
  Tensors copies;
  for (const auto& item : module.named_parameters())
    copies[item.key()] = item.value().detach().clone();
  return copies;
}

void ExpectNear(const Tensors& values, const Tensors& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(values.count(name), 1) << name;
    ASSERT_EQ(values.at(name).sizes(), tensor.sizes()) << name;
    if (tensor.numel() == 0) continue;
    EXPECT_LE((values.at(name) - tensor).abs().max().item<double>(), tolerance) << name;
  }
}

namespace {

template <typename O>
std::unique_ptr<torch::optim::OptimizerOptions> AdamOptionsOf(const HyperParameters& numbers) {
  auto options = std::make_unique<O>(numbers.learning_rate);
  options->betas({numbers.beta1, numbers.beta2})
      .eps(numbers.epsilon)
      .weight_decay(numbers.weight_decay);
  return options;
}

std::unique_ptr<torch::optim::OptimizerOptions> OptionsOf(const JobConfig& config,
                                                          const HyperParameters& numbers) {
  if (config.optimizer == OptimizerKind::kAdam)
    return AdamOptionsOf<torch::optim::AdamOptions>(numbers);
  if (config.optimizer == OptimizerKind::kAdamW)
    return AdamOptionsOf<torch::optim::AdamWOptions>(numbers);
  auto options = std::make_unique<torch::optim::SGDOptions>(numbers.learning_rate);
  options->momentum(numbers.momentum).weight_decay(numbers.weight_decay);
  return options;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> PlainOptimizer(torch::nn::Module& module,
                                                        const JobConfig& config) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const ParamGroup& group : config.groups)
    groups.emplace_back(std::vector<torch::Tensor>(), OptionsOf(config, group));
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    groups[GroupOf(config, item.key())].params().push_back(item.value());
  }
  switch (config.optimizer) {
    case OptimizerKind::kSgd:
      return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
    case OptimizerKind::kAdam:
      return std::make_unique<torch::optim::Adam>(groups);
    case OptimizerKind::kAdamW:
      break;
  }
  return std::make_unique<torch::optim::AdamW>(groups);
}

void ForgetGradients(torch::nn::Module& module) {
  for (torch::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}

void ConformanceTest::SetUp() {
  torch::set_num_threads(1);
  LocalCluster::Options options;
  options.num_devices = 256;
  ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
}

SessionOptions ConformanceTest::Options(int world_size) {
  SessionOptions options;
  options.coordinator_address = cluster_->coordinator_address();
  options.worker_address = cluster_->worker_address();
  options.job_id = absl::StrCat("job", ++num_jobs_);
  options.config.world_size = world_size;
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.groups[0].learning_rate = 0.1;
  options.config.groups[0].momentum = 0.9;
  options.config.collective_timeout = absl::Seconds(20);
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  return options;
}

void ConformanceTest::ForEachRank(int world_size, const std::function<void(int)>& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back([&body, rank] { body(rank); });
  for (std::thread& rank : ranks) rank.join();
}

Tensors ConformanceTest::WholeParameters(ShardedModel* model, const torch::nn::Module& module) {
  Tensors copies;
  SummonOptions options;
  options.writeback = false;
  EXPECT_OK(model->SummonFullParams(options, [&] {
    copies = CopyOf(module);
    return absl::OkStatus();
  }));
  return copies;
}

std::vector<std::string> ConformanceTest::Operations(const std::string& job_id, int rank,
                                                     int64_t step) const {
  std::vector<std::string> operations;
  cli::Endpoint endpoint;
  endpoint.address = cluster_->worker_address();
  const auto client = cli::WorkerClient::Create(endpoint);
  EXPECT_OK(client);
  if (!client.ok()) return operations;
  const auto dump = (*client)->DumpRank(job_id, Rank(rank));
  EXPECT_OK(dump);
  if (!dump.ok()) return operations;
  for (const v1::FlightRecord& record : dump->records()) {
    if (record.step() != step) continue;
    std::string text = record.op();
    if (!record.unit().empty()) absl::StrAppend(&text, " ", record.unit());
    if (record.bytes() > 0) absl::StrAppend(&text, " ", record.bytes());
    operations.push_back(std::move(text));
  }
  return operations;
}

int ConformanceTest::Count(const std::vector<std::string>& operations,
                           const std::string& beginning) {
  int count = 0;
  for (const std::string& operation : operations) count += absl::StartsWith(operation, beginning);
  return count;
}

}  // namespace tessera::conformance
