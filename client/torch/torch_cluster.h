// A cluster of this process and a small model, for tests of attached modules. Ranks are threads.
#ifndef TESSERA_CLIENT_TORCH_TORCH_CLUSTER_H_
#define TESSERA_CLIENT_TORCH_TORCH_CLUSTER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

// A linear layer with a buffer; a unit.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {
    shift = register_buffer("shift", torch::full({width}, 0.25));
  }
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(linear->forward(x + shift)); }
  torch::nn::Linear linear;
  torch::Tensor shift;
};
using Layer = Sharded<LayerImpl>;

// Two layers between linear ones of the root's own; sizes that no number of ranks divides.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : in(register_module("in", torch::nn::Linear(3, 5))),
        first(register_module("first", std::make_shared<Layer>(5))),
        second(register_module("second", std::make_shared<Layer>(5))),
        out(register_module("out", torch::nn::Linear(5, 1))) {
    unused = register_parameter("unused", torch::ones({7}));
  }
  torch::Tensor forward(torch::Tensor x) {
    return out->forward(second->forward(first->forward(in->forward(x))));
  }
  torch::nn::Linear in;
  std::shared_ptr<Layer> first, second;
  torch::nn::Linear out;
  torch::Tensor unused;
};
using Net = Sharded<NetImpl>;

class TorchCluster : public testing::Test {
 protected:
  struct Trainer {
    int rank;
    std::shared_ptr<Net> net;
    std::unique_ptr<ShardedModel> model;
  };

  void SetUp() override;
  SessionOptions OptionsFor(int rank, int world_size) const;
  // The same values at each call.
  std::shared_ptr<Net> MakeNet();
  static torch::Tensor LossOf(Net& net, int64_t step, int rank);
  // Attaches a net on each rank and runs `body`; `edit` changes a rank's options.
  void OnEachRank(int world_size, const std::function<void(Trainer&)>& body,
                  const std::function<void(SessionOptions*)>& edit = nullptr);
  // Ranks as threads; nothing is attached.
  static void ForEachRank(int world_size, const std::function<void(int)>& body);
  // The whole parameters by name; collective.
  static std::map<std::string, torch::Tensor> WholeParameters(Trainer& trainer);
  static std::map<std::string, torch::Tensor> CopyOf(const torch::nn::Module& module);

  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex seed_mu_;  // libtorch's seed is the process's.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_TORCH_CLUSTER_H_
