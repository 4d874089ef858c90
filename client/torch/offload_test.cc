// What autograd saves goes to a store and comes back for backward. Here without a cluster; with one
// in sharded_checkpoint_test.cc.
#include <torch/csrc/autograd/engine.h>

#include <thread>

#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/torch/activations.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using torch::autograd::Engine;

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    torch::manual_seed(3);
    linear = register_module("linear", torch::nn::Linear(6, 6));
    frozen = register_parameter("frozen", torch::full({6}, 0.5), /*requires_grad=*/false);
  }
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor h = linear->forward(x * frozen);
    h = (h + x.exp()).relu_().softmax(1);
    return x + torch::dropout(torch::layer_norm(h, {6}), 0.5, /*train=*/true).tanh();
  }
  torch::nn::Linear linear{nullptr};
  torch::Tensor frozen;
};

torch::Tensor Input() {
  torch::manual_seed(9);
  return torch::randn({4, 6}).requires_grad_();
}

// What the host's store does, counted.
class CountingStore : public SavedTensorStore {
 public:
  explicit CountingStore(const CheckpointModules& modules = {})
      : host_(StoreOn(torch::kCPU, modules)) {}
  std::function<torch::Tensor()> Keep(const torch::Tensor& tensor) const override {
    absl::MutexLock lock(&mu_);
    ++kept_;
    EXPECT_TRUE(host_->Keep(tensor)().device().is_cpu());
    EXPECT_EQ(host_->Keep(tensor)().data_ptr(), tensor.data_ptr()) << "nothing is copied";
    return [this, give_back = host_->Keep(tensor)] {
      absl::MutexLock lock(&mu_);
      ++given_back_;
      return give_back();
    };
  }
  int kept() const {
    absl::MutexLock lock(&mu_);
    return kept_;
  }
  int given_back() const {
    absl::MutexLock lock(&mu_);
    return given_back_;
  }

 private:
  const std::shared_ptr<const SavedTensorStore> host_;
  mutable absl::Mutex mu_;
  mutable int kept_ ABSL_GUARDED_BY(mu_) = 0, given_back_ ABSL_GUARDED_BY(mu_) = 0;
};

// Gives twice the values back.
class DoublingStore : public SavedTensorStore {
 public:
  std::function<torch::Tensor()> Keep(const torch::Tensor& tensor) const override {
    return [twice = tensor.detach() * 2] { return twice; };
  }
};

struct Outcome {
  torch::Tensor y, x_gradient, weight_gradient;
};

template <typename F>
Outcome RunOnce(LayerImpl& layer, F&& forward) {
  torch::Tensor x = Input();
  Outcome outcome;
  outcome.y = forward(x);
  outcome.y.square().sum().backward();
  outcome.x_gradient = x.grad();
  outcome.weight_gradient = layer.linear->weight.grad();
  return outcome;
}

void ExpectSameBits(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(torch::equal(a.y, b.y));
  EXPECT_TRUE(torch::equal(a.x_gradient, b.x_gradient));
  EXPECT_TRUE(torch::equal(a.weight_gradient, b.weight_gradient));
}

Outcome PlainOutcome() {
  auto plain = std::make_shared<LayerImpl>();
  return RunOnce(*plain, [&](torch::Tensor x) { return plain->forward(x); });
}

template <typename F>
absl::Status StatusOf(F&& f) {
  try {
    f();
  } catch (const StatusException& e) {
    return e.status();
  } catch (const std::exception& e) {
    return absl::UnknownError(e.what());
  }
  return absl::OkStatus();
}

TEST(OffloadTest, GivesTheBitsOfThePlainCall) {
  auto layer = std::make_shared<LayerImpl>();
  ExpectSameBits(PlainOutcome(),
                 RunOnce(*layer, [&](torch::Tensor x) { return Offload(layer, x); }));
  torch::Tensor x = Input();
  const auto [y, number] = Offload(
      [](torch::Tensor x, int n) { return std::pair<torch::Tensor, int>(x.exp() * n, n + 1); }, x,
      2);
  y.sum().backward();
  EXPECT_EQ(number, 3);
  EXPECT_TRUE(torch::equal(x.grad(), y));
}

TEST(OffloadTest, BackwardUsesWhatTheStoreGivesBack) {
  torch::Tensor x = Input(), w = torch::full({6}, 3.0).requires_grad_();
  torch::Tensor y;
  {
    const SavedTensorScope scope(std::make_shared<DoublingStore>());
    y = x * w;
  }
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({4, 6}, 6.0)));
  EXPECT_TRUE(torch::equal(w.grad(), (x.detach() * 2).sum(0)));
}

// CKW-7: of the tensors that a graph saves each one goes through the store, as what backward needs
// comes out of it; how many are saved is libtorch's.
TEST(OffloadTest, EverySavedTensorIsOnTheHostAndAsksTheStoreAgainForBackward) {
  auto layer = std::make_shared<LayerImpl>();
  const auto store = std::make_shared<CountingStore>(CheckpointModules{layer});
  const Outcome outcome = RunOnce(*layer, [&](torch::Tensor x) {
    const SavedTensorScope scope(store);
    return layer->forward(x);
  });
  ExpectSameBits(PlainOutcome(), outcome);
  EXPECT_GT(store->kept(), 8) << "of eight operations";
  EXPECT_EQ(store->given_back(), store->kept());
}

TEST(OffloadTest, ParametersStayAndTheRestIsMovedToTheOtherDevice) {
  torch::nn::Linear linear(3, 2);
  // A device that forgets values, so that what stays can be told from what was moved and is lost.
  const auto store = StoreOn(torch::kMeta, {linear.ptr()});
  EXPECT_EQ(store->Keep(linear->weight)().data_ptr(), linear->weight.data_ptr());
  EXPECT_EQ(store->Keep(linear->weight.t())().data_ptr(), linear->weight.data_ptr()) << "a view";
  const auto moved = store->Keep(Input());
  EXPECT_THAT(StatusOf([&] { moved(); }),
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("meta tensor")));
  const torch::Tensor meta = torch::empty({5}, torch::kMeta);
  EXPECT_TRUE(StoreOn(torch::kMeta, {})->Keep(meta)().is_meta());
}

TEST(OffloadTest, TensorThatIsChangedInPlaceBeforeBackwardIsAnError) {
  const auto changed = [](const std::function<void(torch::Tensor & x, torch::Tensor & y)>& change) {
    torch::Tensor x = Input() * 1;
    torch::Tensor y = Offload([](torch::Tensor x) { return x.square().exp(); }, x);
    change(x, y);
    return StatusOf([&] { y.sum().backward(); });
  };
  EXPECT_OK(changed([](torch::Tensor&, torch::Tensor&) {}));
  EXPECT_THAT(changed([](torch::Tensor& x, torch::Tensor&) { x.mul_(2); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("[4, 6] was changed")));
  EXPECT_THAT(changed([](torch::Tensor&, torch::Tensor& y) { y.detach().mul_(2); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("[4, 6] was changed")))
      << "an output that is saved";
}

TEST(OffloadTest, InnermostScopeOfTheThreadCountsAndNoneAfterwards) {
  const auto outer = std::make_shared<CountingStore>(), inner = std::make_shared<CountingStore>();
  torch::Tensor x = Input();
  std::vector<torch::Tensor> graphs;  // A graph that ends would tell nothing.
  {
    const SavedTensorScope outer_scope(outer);
    {
      const SavedTensorScope inner_scope(inner);
      graphs.push_back(x.exp());
      std::thread([&] { graphs.push_back(x.exp()); }).join();
    }
    EXPECT_EQ(outer->kept(), 0);
    graphs.push_back(x.exp());
    graphs.push_back(x.square());
  }
  graphs.push_back(x.exp());
  EXPECT_EQ(inner->kept(), 1);
  EXPECT_EQ(outer->kept(), 2);
}

TEST(OffloadTest, GraphThatIsKeptAsksTheStoreForEachBackward) {
  const auto store = std::make_shared<CountingStore>();
  torch::Tensor x = Input(), y;
  {
    const SavedTensorScope scope(store);
    y = x.exp().sum();
  }
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_EQ(store->kept(), 1);
  EXPECT_EQ(store->given_back(), 2);
  EXPECT_TRUE(torch::equal(x.grad(), x.exp() * 2));
}

// ACT-2: of a segment the store has the inputs and the parameters; what the segment saves when it
// is computed again in backward goes nowhere.
TEST(OffloadTest, OfACheckpointedSegmentOnlyInputsAreKept) {
  auto layer = std::make_shared<LayerImpl>();
  const auto store = std::make_shared<CountingStore>(CheckpointModules{layer});
  const Outcome outcome = RunOnce(*layer, [&](torch::Tensor x) {
    const SavedTensorScope scope(store);
    return Checkpoint(layer, x);
  });
  ExpectSameBits(PlainOutcome(), outcome);
  EXPECT_EQ(store->kept(), 3) << "an input, a weight and a bias";
  EXPECT_EQ(store->given_back(), 3);
  auto other = std::make_shared<LayerImpl>();
  ExpectSameBits(PlainOutcome(), RunOnce(*other, [&](torch::Tensor x) {
                   return OffloadWith(
                       {other}, [other](torch::Tensor x) { return Checkpoint(other, x); }, x);
                 }));
}

TEST(OffloadTest, EngineOfAnotherLibraryIsRefused) {
  class Other : public Engine {
   public:
    static Engine& Get() {
      static auto* const engine = new Other;
      return *engine;
    }
  };
  torch::autograd::set_default_engine_stub(&Other::Get);
  const absl::Status status =
      StatusOf([] { Offload([](torch::Tensor x) { return x.exp(); }, Input()); });
  torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("another library's")));
  EXPECT_OK(StatusOf([] { Offload([](torch::Tensor x) { return x.exp(); }, Input()); }));
}

}  // namespace
}  // namespace tessera
