// One rank of a job: tessera run -n RANKS -- train STEPS MODEL_FILE
#include <torch/torch.h>

#include <iostream>

#include "tessera/torch/sharded_model.h"

struct BlockImpl : torch::nn::Module {  // Yours; each block will be a unit, and so is the root.
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};

struct ModelImpl : torch::nn::Module {
  ModelImpl(int blocks_count, int64_t width) {
    embedding = register_parameter("embedding", torch::randn({256, width}) * 0.02);
    register_parameter("output", embedding);  // Tied: shared within the unit.
    for (int i = 0; i < blocks_count; ++i)
      blocks.push_back(register_module("block" + std::to_string(i),
                                       std::make_shared<tessera::Sharded<BlockImpl>>(width)));
  }
  torch::Tensor forward(torch::Tensor bytes) {
    torch::Tensor x = torch::embedding(embedding, bytes);
    for (auto& block : blocks) x = block->forward(x);
    return torch::matmul(x, embedding.t());
  }
  torch::Tensor embedding;
  std::vector<std::shared_ptr<tessera::Sharded<BlockImpl>>> blocks;
};

absl::Status Train(const tessera::SessionOptions& options, int64_t steps, const std::string& path) {
  torch::manual_seed(1);  // Each rank gives its part of the initial values.
  auto model = std::make_shared<tessera::Sharded<ModelImpl>>(4, 64);
  auto sharded = tessera::ShardedModel::Attach(model, options);  // An absl::StatusOr.
  if (!sharded.ok()) return sharded.status();
  while ((*sharded)->next_step() <= steps) {         // A new process goes on from here.
    absl::Status status = (*sharded)->RunStep([&] {  // Runs again if a rank's death undid it.
      torch::manual_seed((*sharded)->next_step() * options.config.world_size + options.rank);
      torch::Tensor bytes = torch::randint(255, {8, 64}, torch::kInt64);  // Your batch.
      torch::nn::functional::cross_entropy(model->forward(bytes).flatten(0, 1),
                                           (bytes + 1).flatten())
          .backward();
      return (*sharded)->Step(/*learning_rate_scale=*/1.0);  // Done on all ranks or on none.
    });
    if (!status.ok()) return status;
  }
  return (*sharded)->session().Save(path);  // All ranks write their part.
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tessera run -n RANKS -- train STEPS MODEL_FILE\n";
    return 2;
  }
  auto options = tessera::OptionsFromLauncher();  // Addresses, rank and number of ranks.
  if (!options.ok()) {
    std::cerr << options.status() << "\n";
    return 2;
  }
  options->config.max_gradient_norm = 1.0;
  const absl::Status status = Train(*options, std::atoll(argv[1]), argv[2]);
  if (status.ok()) return 0;
  std::cerr << "rank " << options->rank << ": " << status << "\n";
  return absl::IsAborted(status) ? 75 : 1;  // 75: another process died; this one is started again.
}
