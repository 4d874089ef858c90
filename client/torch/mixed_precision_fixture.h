// What the tests of mixed precision share: a small model, its training written out, and a cluster
// of this process.
#ifndef TESSERA_CLIENT_TORCH_MIXED_PRECISION_FIXTURE_H_
#define TESSERA_CLIENT_TORCH_MIXED_PRECISION_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/attach_options.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"
#include "tessera/torch/units.h"

namespace tessera {

// Every operation that it uses has fp16 on a CPU too.
struct GateImpl : torch::nn::Module {
  GateImpl() {
    weight = register_parameter("weight", torch::rand({4}) + 0.5);
    shift = register_buffer("shift", torch::full({4}, 0.1, torch::kFloat64));
    count = register_buffer("count", torch::zeros({1}, torch::kInt64));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen = {x.scalar_type(), weight.scalar_type(), shift.scalar_type()};
    count += 1;
    return x * weight + shift.to(weight.scalar_type());
  }
  torch::Tensor weight, shift, count;
  std::vector<torch::ScalarType> seen;
};
using Gate = Sharded<GateImpl>;

struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl() {
    scale = register_parameter("scale", torch::rand({4}) + 0.5);
    first = register_module("first", std::make_shared<Gate>());
    second = register_module("second", std::make_shared<Gate>());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen = x.scalar_type();
    return second->forward(first->forward(x) * scale);
  }
  torch::Tensor scale;
  std::shared_ptr<Gate> first, second;
  torch::ScalarType seen = torch::kFloat32;
};
using MixedNet = Sharded<MixedNetImpl>;

// Its buffers stay as they are.
std::shared_ptr<MixedNet> WithParametersIn(DType dtype, std::shared_ptr<MixedNet> net);

torch::Tensor Batch(int rank, int64_t step);
torch::Tensor Loss(const torch::Tensor& output);
AttachOptions With(const MixedPrecision& precision);

class MixedPrecisionTest : public testing::Test {
 protected:
  void SetUp() override;
  SessionOptions OptionsFor(int rank, int world_size = 1) const;
  template <typename M, typename... Args>
  std::shared_ptr<M> Make(Args... args) {
    absl::MutexLock lock(&seed_mu_);  // libtorch's seed is the process's.
    torch::manual_seed(3);
    return std::make_shared<M>(args...);
  }
  static void ForEachRank(int world_size, const std::function<void(int)>& body);

  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex seed_mu_;
};

// The parameters in full precision, through windows in full precision.
std::vector<torch::Tensor> MasterParameters(Session& session);

struct Dtypes {
  torch::ScalarType parameters, buffers, reduce;
};

// Master parameters in the net's dtype; each rank computes with rounded copies; gradients are
// rounded to the reduce dtype, summed in the net's in rank order. In the order of MasterParameters.
std::vector<torch::Tensor> UnshardedRun(MixedNet& net, int world_size, int64_t steps,
                                        const Dtypes& dtypes);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_MIXED_PRECISION_FIXTURE_H_
