// The model and the data that PyTorch's FSDP was asked to train, whose losses and parameters are in
// tests/reference/torch/golden (README.md there gives their formulae), and a run of them here.
#ifndef TESSERA_TESTS_CONFORMANCE_FSDP_GOLDEN_TRAINING_H_
#define TESSERA_TESTS_CONFORMANCE_FSDP_GOLDEN_TRAINING_H_

#include <cstdint>
#include <memory>
#include <string>

#include "nlohmann/json.hpp"
#include "tessera/local_cluster.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera::conformance {

using Json = nlohmann::json;

// tests/reference/torch/golden/`name`.json
Json ReadGolden(const std::string& name);

// Multiplies in fp32 whatever the parameters are in, and rounds what goes in and comes out; in fp32
// it is nn.Linear.
struct RoundedLinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  torch::Tensor forward(const torch::Tensor& x);
};

// Named as torch.nn.Sequential names them; two layers are units, the last one is the root's.
struct GoldenModelImpl : torch::nn::Module {
  GoldenModelImpl();
  torch::Tensor forward(torch::Tensor x);
  std::shared_ptr<Sharded<RoundedLinearImpl>> first, second;
  std::shared_ptr<RoundedLinearImpl> third;
};
using GoldenModel = Sharded<GoldenModelImpl>;

// Largest differences, absolute.
struct Tolerance {
  double loss = 0, parameter = 0;
};

// A run of a golden file, trained under Tessera.
struct GoldenRun {
  const Json& golden;  // The file's content.
  const Json& run;     // One of its runs.
  std::string job_id;
  Strategy strategy;
  const LocalCluster& cluster;
  int num_workers = 1;  // They share the ranks equally.
  Tolerance tolerance;
};

// All ranks, in threads; compares losses, norms and parameters as it goes.
void TrainGolden(const GoldenRun& run);

}  // namespace tessera::conformance

#endif  // TESSERA_TESTS_CONFORMANCE_FSDP_GOLDEN_TRAINING_H_
