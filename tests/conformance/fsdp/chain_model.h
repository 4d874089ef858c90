// A model of equal blocks in a row, each a unit, under a root with a parameter of its own; and a
// cluster for jobs that train it. Ranks are threads of the test.
#ifndef TESSERA_TESTS_CONFORMANCE_FSDP_CHAIN_MODEL_H_
#define TESSERA_TESTS_CONFORMANCE_FSDP_CHAIN_MODEL_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera::testing_support {

struct BlockImpl : torch::nn::Module {
  BlockImpl() : linear(register_module("linear", torch::nn::Linear(5, 5))) {}
  // `during`, if set, runs inside of forward, and of backward before the parameters' gradients.
  torch::Tensor forward(torch::Tensor x) {
    if (during) during(/*in_backward=*/false);
    torch::Tensor y = linear->forward(x);
    if (during && y.requires_grad())
      y.register_hook([this](const torch::Tensor&) { during(/*in_backward=*/true); });
    return torch::tanh(y) + x;
  }
  torch::nn::Linear linear;
  std::function<void(bool in_backward)> during;
};
using Block = Sharded<BlockImpl>;

struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(int num_blocks);
  // Through the blocks in `order`.
  torch::Tensor forward(torch::Tensor x);
  torch::Tensor scale;
  std::vector<std::shared_ptr<Block>> blocks;
  std::vector<int> order;
};
using Chain = Sharded<ChainImpl>;

// The mean of squares of what the model makes of the samples of this step and rank.
torch::Tensor ChainLoss(Chain& model, int64_t step, int rank, int micro_batch = 0);

using Values = std::map<std::string, torch::Tensor>;
Values CopyOf(const torch::nn::Module& module);

class ChainTest : public testing::Test {
 protected:
  static constexpr int kWorldSize = 2;

  struct Trainer {
    int rank;
    std::shared_ptr<Chain> chain;
    std::unique_ptr<ShardedModel> model;
  };

  void SetUp() override;
  // SGD with rate 0.5.
  SessionOptions OptionsFor(const std::string& job, int rank) const;
  std::shared_ptr<Chain> MakeChain(int num_blocks = 4);
  // Attaches a model on each rank of a new job, and runs `body` there.
  void OnEachRank(const std::string& job, const std::function<void(JobConfig*)>& configure,
                  const std::function<void(Trainer&)>& body);
  static void ForEachRank(const std::function<void(int rank)>& body);
  // One step; the default is one backward of the step's loss.
  static absl::Status TrainStep(Trainer& trainer);
  // The whole parameters; collective.
  static Values WholeParameters(Trainer& trainer);
  // The bits of both are the same.
  static void ExpectSameBits(const Values& values, const Values& expected, const std::string& what);

  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex mu_;  // libtorch's seed is the process's; what ranks report.
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_CONFORMANCE_FSDP_CHAIN_MODEL_H_
