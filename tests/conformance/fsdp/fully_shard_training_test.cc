// The same model, data and optimizer under PyTorch's fully_shard (FSDP2, in real processes; its
// record is in tests/reference/torch/golden) and under Tessera give the same losses and parameters
// within rounding.
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cpp/local_cluster.h"
#include "client/torch/sharded.h"
#include "client/torch/sharded_model.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Losses are of the order of 0.5, parameters of the order of 0.1, and Adam divides small gradients
// by small roots, so a rounding of the gradient may show in the fifth digit of a step of 0.01.
constexpr double kLossTolerance = 2e-6;
constexpr double kParameterTolerance = 2e-5;

// Named as torch.nn.Sequential names them; two layers are units, the last one is the root's.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    first = register_module("0", std::make_shared<Sharded<torch::nn::LinearImpl>>(3, 16));
    second = register_module("2", std::make_shared<Sharded<torch::nn::LinearImpl>>(16, 17));
    third = register_module("4", std::make_shared<torch::nn::LinearImpl>(17, 3));
    torch::NoGradGuard no_grad;
    int64_t k = 0;
    for (auto& parameter : parameters()) {
      const torch::Tensor i = torch::arange(parameter.numel());
      parameter.copy_(
          (((i * 29 + 7 * k++) % 97 - 48).to(torch::kFloat32) / 128).view(parameter.sizes()));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    return third->forward(torch::relu(second->forward(torch::relu(first->forward(x)))));
  }
  std::shared_ptr<Sharded<torch::nn::LinearImpl>> first, second;
  std::shared_ptr<torch::nn::LinearImpl> third;
};

// `rank`'s part of the eight samples of a step.
torch::Tensor Samples(int64_t step, int64_t factor, int64_t of_step, int64_t modulus,
                      int64_t offset, int rank, int world_size) {
  const torch::Tensor all =
      (((torch::arange(24) * factor + of_step * step) % modulus - offset).to(torch::kFloat32) / 64)
          .view({8, 3});
  const int64_t count = 8 / world_size;
  return all.slice(0, rank * count, (rank + 1) * count);
}

JobConfig ConfigOf(const Json& run) {
  JobConfig config;
  config.world_size = run["world_size"];
  const Json& options = run["options"];
  ParamGroup& group = config.groups[0];
  group.learning_rate = options["lr"];
  group.weight_decay = options.value("weight_decay", 0.0);
  if (run["optimizer"] == "sgd") {
    config.optimizer = OptimizerKind::kSgd;
    group.momentum = options["momentum"];
    return config;
  }
  EXPECT_EQ(run["optimizer"], "adamw");
  config.optimizer = OptimizerKind::kAdamW;
  group.beta1 = options["betas"][0];
  group.beta2 = options["betas"][1];
  group.epsilon = options["eps"];
  return config;
}

class FullyShardTrainingTest : public testing::TestWithParam<Strategy> {
 protected:
  static Json Golden() {
    std::ifstream file("tests/reference/torch/golden/fully_shard_training.json");
    return Json::parse(file);
  }
  // One rank's run; compares as it goes.
  static void Train(const LocalCluster& cluster, const Json& golden, const Json& run,
                    const std::string& job_id, int rank) {
    SessionOptions options;
    options.coordinator_address = cluster.coordinator_address();
    options.worker_address = cluster.worker_address();
    options.job_id = job_id;
    options.rank = rank;
    options.config = ConfigOf(run);
    options.config.strategy = GetParam();
    options.attach_timeout = absl::Seconds(30);
    options.operation_timeout = absl::Seconds(60);
    auto model = std::make_shared<Sharded<ModelImpl>>();
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, options));
    const int world_size = run["world_size"];
    const int64_t steps = golden["steps"];
    for (int64_t step = 1; step <= steps; ++step) {
      ASSERT_OK(sharded->RunStep([&] {
        const torch::Tensor output =
            model->forward(Samples(step, 37, 11, 101, 50, rank, world_size));
        const torch::Tensor loss =
            torch::mse_loss(output, Samples(step, 41, 13, 103, 51, rank, world_size));
        EXPECT_NEAR(loss.item<double>(), run["losses"][rank][step - 1].get<double>(),
                    kLossTolerance)
            << "rank " << rank << ", step " << step;
        loss.backward();
        return sharded->Step();
      }));
    }
    Session& session = sharded->session();
    for (int unit = 0; unit < session.num_units(); ++unit) {
      ASSERT_OK(session.Unshard(unit));
      const auto& parameters = session.layout().units[unit].flat.parameters();
      for (size_t p = 0; p < parameters.size(); ++p) {
        const Json& wanted = run["parameters"][parameters[p].spec.name];
        ASSERT_EQ(static_cast<int64_t>(wanted.size()), parameters[p].numel);
        const float* values = reinterpret_cast<const float*>(session.parameter(unit, p));
        for (int64_t i = 0; i < parameters[p].numel; ++i) {
          ASSERT_NEAR(values[i], wanted[i].get<double>(), kParameterTolerance)
              << parameters[p].spec.name << "[" << i << "], rank " << rank;
        }
      }
      ASSERT_OK(session.Reshard(unit));
    }
  }
};

TEST_P(FullyShardTrainingTest, LossesAndParametersAreThoseOfPyTorch) {
  torch::set_num_threads(1);
  const Json golden = Golden();
  ASSERT_EQ(golden["runs"].size(), 4);
  for (const Json& run : golden["runs"]) {
    const int world_size = run["world_size"];
    const std::string name = absl::StrCat(run["optimizer"].get<std::string>(), "-", world_size);
    SCOPED_TRACE(name);
    LocalCluster::Options options;
    options.num_devices = world_size;
    ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
    std::vector<std::thread> trainers;
    for (int rank = 0; rank < world_size; ++rank)
      trainers.emplace_back([&, rank] { Train(*cluster, golden, run, name, rank); });
    for (std::thread& trainer : trainers) trainer.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, FullyShardTrainingTest,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGradOp,
                                         Strategy::kNoShard));

}  // namespace
}  // namespace tessera
