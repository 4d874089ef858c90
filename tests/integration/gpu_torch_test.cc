// Modules of libtorch on GPUs, which are fakes in host memory here: losses and
// parameters have the bits of workers without a GPU. What of this only libtorch's own CUDA code
// does (its tensors, streams and allocator) is not here.
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "client/torch/torch_device.h"
#include "gtest/gtest.h"
#include "tessera/device_gradients.h"
#include "tests/testing/fake_gpu.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing_support::FakeGpu;
using testing_support::FakeGpuMemory;
using testing_support::MakeFakeGpuDevice;

constexpr int kRanks = 2;
constexpr int kLayers = 7;  // With one gathered ahead some share a slot.
constexpr int64_t kSteps = 5;

struct PlainLayerImpl : torch::nn::Module {
  PlainLayerImpl() : linear(register_module("linear", torch::nn::Linear(5, 5))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(linear->forward(x)); }
  torch::nn::Linear linear;
};
using PlainLayer = Sharded<PlainLayerImpl>;

struct DeepNetImpl : torch::nn::Module {
  DeepNetImpl()
      : in(register_module("in", torch::nn::Linear(3, 5))),
        out(register_module("out", torch::nn::Linear(5, 1))) {
    for (int i = 0; i < kLayers; ++i)
      layers.push_back(register_module(absl::StrCat("layer", i), std::make_shared<PlainLayer>()));
    unused = register_parameter("unused", torch::ones({7}));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = in->forward(x);
    for (const auto& layer : layers) x = layer->forward(x);
    return out->forward(x);
  }
  torch::nn::Linear in, out;
  std::vector<std::shared_ptr<PlainLayer>> layers;
  torch::Tensor unused;
};
using DeepNet = Sharded<DeepNetImpl>;

struct Case {
  const char* name;
  bool of_its_own = true;  // Each rank has a GPU, and so slots; else they share one.
  DType dtype = DType::kFp32;
  bool cpu_offload = false;
  bool accumulates = false;  // Two batches a step, the first without a reduction.
  bool prefetches = false;   // In forward too, and as early as can be in backward.
  Strategy strategy = Strategy::kFullShard;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

struct Result {
  std::vector<std::vector<double>> losses{kRanks};  // By rank and batch.
  std::map<std::string, torch::Tensor> parameters;
};

class GpuTorchTest : public TorchCluster, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {}

  void Start(bool on_gpu) {
    LocalCluster::Options options;
    options.num_workers = GetParam().of_its_own ? kRanks : 1;
    options.num_devices = GetParam().of_its_own ? 1 : kRanks;
    options.machine = std::make_shared<ExecutorMachine>();
    options.machine->make_device = MakeFakeGpuDevice;
    if (on_gpu) options.device_memory = FakeGpuMemory();
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster.status());
    cluster_ = *std::move(cluster);
  }

  SessionOptions JobOf(int rank) const {
    const Case& test = GetParam();
    SessionOptions options = OptionsFor(rank, kRanks);
    if (test.of_its_own) options.worker_address = cluster_->worker_address(rank);
    options.make_device = MakeFakeGpuDevice;
    options.config.max_gathered_units = 1;
    options.config.max_gradient_norm = 0.5;
    options.config.strategy = test.strategy;
    options.config.compute_dtype = options.config.reduce_dtype = test.dtype;
    options.config.cpu_offload = test.cpu_offload;
    if (test.accumulates) options.config.gradient_slots = 0;
    options.config.forward_prefetch = test.prefetches;
    options.config.backward_prefetch =
        test.prefetches ? BackwardPrefetch::kPre : BackwardPrefetch::kNone;
    return options;
  }

  std::shared_ptr<DeepNet> MakeDeepNet() {
    torch::set_num_threads(1);
    absl::MutexLock lock(&seed_mu_);
    torch::manual_seed(9);
    return std::make_shared<DeepNet>();
  }

  static double Backward(DeepNet& net, int64_t batch, int rank) {
    const torch::Tensor x = torch::sin(torch::arange(12).view({4, 3}) * (batch + 2.0) + 5.0 * rank);
    const torch::Tensor loss = net.forward(x).to(torch::kFloat).square().mean();
    loss.backward();
    return loss.item<double>();
  }

  absl::Status TrainStep(ShardedModel* model, DeepNet& net, int rank, std::vector<double>* losses) {
    return model->RunStep([&] {
      const int64_t step = model->next_step();
      if (GetParam().accumulates) {
        const ShardedModel::NoSync no_sync(model);
        losses->push_back(Backward(net, 100 + step, rank));
      }
      losses->push_back(Backward(net, step, rank));
      return model->Step();
    });
  }

  void TrainRank(int rank, bool on_gpu, Result* result) {
    const std::shared_ptr<DeepNet> net = MakeDeepNet();
    auto attached = ShardedModel::Attach(net, JobOf(rank));
    ASSERT_OK(attached.status());
    const std::unique_ptr<ShardedModel> model = *std::move(attached);
    const DeviceGradients gradients(&model->session());
    ASSERT_EQ(gradients.available(), on_gpu);
    const bool shares = GetParam().of_its_own && GetParam().strategy == Strategy::kFullShard;
    ASSERT_EQ(gradients.HasSlot(kLayers), on_gpu && shares);
    while (model->next_step() <= kSteps) {
      ASSERT_OK(TrainStep(model.get(), *net, rank, &result->losses[rank]));
      if (model->next_step() != 3) continue;
      ASSERT_OK(model->SummonFullParams(SummonOptions(), [&] {
        const torch::NoGradGuard no_grad;
        for (const auto& layer : net->layers) layer->linear->weight.mul_(0.75);
        return absl::OkStatus();
      }));
    }
    SummonOptions reading;
    reading.writeback = false;
    ASSERT_OK(model->SummonFullParams(reading, [&] {
      if (rank == 0) result->parameters = CopyOf(*net);
      return absl::OkStatus();
    }));
  }

  Result Train(bool on_gpu) {
    Result result;
    Start(on_gpu);
    if (cluster_ == nullptr) return result;
    ForEachRank(kRanks, [&](int rank) { TrainRank(rank, on_gpu, &result); });
    cluster_.reset();
    return result;
  }

  const ScopedProcessorTensors tensors_;
};

TEST_P(GpuTorchTest, TrainsWithTheBitsOfWorkersWithoutAGpu) {
  const Result expected = Train(/*on_gpu=*/false);
  const Result result = Train(/*on_gpu=*/true);
  ASSERT_EQ(expected.losses.front().size(), (GetParam().accumulates ? 2 : 1) * kSteps);
  EXPECT_NE(expected.losses.front(), expected.losses.back());
  EXPECT_EQ(result.losses, expected.losses);
  ASSERT_EQ(result.parameters.size(), expected.parameters.size());
  for (const auto& [name, values] : expected.parameters) {
    ASSERT_EQ(result.parameters.count(name), 1u) << name;
    EXPECT_TRUE(torch::equal(result.parameters.at(name), values)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GpuTorchTest,
    testing::Values(Case{"Slots"}, Case{"OneGpu", false}, Case{"Half", true, DType::kBf16},
                    Case{"Offloaded", true, DType::kFp32, true},
                    Case{"Accumulating", true, DType::kFp32, false, true},
                    Case{"Prefetching", true, DType::kFp32, false, false, true},
                    Case{"PrefetchingHalfOnOneGpu", false, DType::kBf16, false, true, true},
                    Case{"KeptAfterForward", true, DType::kFp32, false, false, false,
                         Strategy::kShardGradOp}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
