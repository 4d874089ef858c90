// A rank of training_peers.py in C++, with modules of libtorch: prints its seconds of a step and of
// forward and backward alone, by the clock and of the cores, medians, as JSON.
//
//   training_peer COORDINATOR WORKER RANK WORLD_SIZE WIDTH HEADS BLOCKS CONTEXT BATCH STEPS
#include <time.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/torch/sharded_model.h"

namespace {

namespace nn = torch::nn;

struct Sizes {
  int64_t width, heads, blocks, context;
};

struct BlockImpl : nn::Module {
  explicit BlockImpl(const Sizes& sizes)
      : heads(sizes.heads),
        norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({sizes.width})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({sizes.width})))),
        qkv(register_module("qkv", nn::Linear(sizes.width, 3 * sizes.width))),
        projection(register_module("projection", nn::Linear(sizes.width, sizes.width))),
        up(register_module("up", nn::Linear(sizes.width, 4 * sizes.width))),
        down(register_module("down", nn::Linear(4 * sizes.width, sizes.width))) {}
  torch::Tensor forward(torch::Tensor x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto qkvs = qkv(norm1(x)).view({batch, length, 3, heads, -1}).permute({2, 0, 3, 1, 4});
    const auto mixed = torch::scaled_dot_product_attention(qkvs[0], qkvs[1], qkvs[2], {}, 0.0,
                                                           /*is_causal=*/true);
    x = x + projection(mixed.transpose(1, 2).reshape({batch, length, width}));
    return x + down(torch::gelu(up(norm2(x))));
  }
  int64_t heads;
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, projection, up, down;
};

// The same with sharded blocks and with plain ones.
template <typename Block>
struct GptImpl : nn::Module {
  explicit GptImpl(const Sizes& sizes) {
    embedding = register_parameter("embedding", torch::randn({256, sizes.width}));
    position = register_parameter("position", torch::randn({sizes.context, sizes.width}));
    for (int64_t i = 0; i < sizes.blocks; ++i)
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<Block>(sizes)));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({sizes.width})));
  }
  torch::Tensor forward(torch::Tensor tokens) {
    torch::Tensor x = torch::embedding(embedding, tokens) + position.slice(0, 0, tokens.size(1));
    for (auto& block : blocks) x = block->forward(x);
    return torch::matmul(norm(x), embedding.t());
  }
  torch::Tensor embedding, position;
  std::vector<std::shared_ptr<Block>> blocks;
  nn::LayerNorm norm = nullptr;
};

template <typename Model>
torch::Tensor LossOf(Model& model, int64_t batch, int64_t length) {
  // Others each time: of those that it knows, gradients would become denormal, which are slow.
  const torch::Tensor windows = torch::randint(0, 256, {batch, length + 1}, torch::kInt64);
  return nn::functional::cross_entropy(model.forward(windows.slice(1, 0, length)).flatten(0, 1),
                                       windows.slice(1, 1).flatten());
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double ProcessCpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// Of body(), medians: by the clock, and of the cores by all threads of this process.
struct Seconds {
  double wall, cpu;
};

template <typename Body>
Seconds MedianSeconds(int steps, const Body& body) {
  std::vector<double> wall, cpu;
  for (int step = 0; step < steps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    const double cpu_began = ProcessCpuSeconds();
    body();
    cpu.push_back(ProcessCpuSeconds() - cpu_began);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    wall.push_back(took.count());
  }
  return {Median(std::move(wall)), Median(std::move(cpu))};
}

absl::Status Measure(const tessera::SessionOptions& options, const Sizes& sizes, int64_t batch,
                     int steps) {
  torch::manual_seed(1);
  GptImpl<BlockImpl> plain(sizes);
  torch::manual_seed(1);
  using Model = tessera::Sharded<GptImpl<tessera::Sharded<BlockImpl>>>;
  auto model = std::make_shared<Model>(sizes);
  auto sharded = tessera::ShardedModel::Attach(model, options);
  if (!sharded.ok()) return sharded.status();
  torch::manual_seed(options.rank);
  absl::Status status;
  const auto step = [&] {
    LossOf(*model, batch, sizes.context).backward();
    const auto result = (*sharded)->Step(/*learning_rate_scale=*/1.0);
    status = status.ok() ? result : status;
  };
  for (int i = 0; i < 2; ++i) step();
  const Seconds of_step = MedianSeconds(steps, step);
  if (!status.ok()) return status;
  sharded->reset();
  // Last, and on all ranks at once, since they share the cores.
  const Seconds of_compute = MedianSeconds(steps, [&] {
    plain.zero_grad();
    LossOf(plain, batch, sizes.context).backward();
  });
  printf("{\"step\": %.9f, \"compute\": %.9f, \"step_cpu\": %.9f, \"compute_cpu\": %.9f}\n",
         of_step.wall, of_compute.wall, of_step.cpu, of_compute.cpu);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 11) return 2;
  torch::set_num_threads(1);
  tessera::SessionOptions options;
  options.coordinator_address = argv[1];
  options.worker_address = argv[2];
  options.job_id = "peer";
  options.rank = std::atoi(argv[3]);
  options.config.world_size = std::atoi(argv[4]);
  const Sizes sizes = {std::atoll(argv[5]), std::atoll(argv[6]), std::atoll(argv[7]),
                       std::atoll(argv[8])};
  const absl::Status status = Measure(options, sizes, std::atoll(argv[9]), std::atoi(argv[10]));
  if (!status.ok()) std::cerr << "rank " << options.rank << ": " << status << "\n";
  return status.ok() ? 0 : 1;
}
