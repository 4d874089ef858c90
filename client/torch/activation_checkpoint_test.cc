// A checkpointed segment gives the bits of the plain call. Here without a cluster; with one in
// sharded_checkpoint_test.cc.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/torch/activations.h"

namespace tessera {
namespace {

using testing::HasSubstr;

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(double dropout = 0.5) : dropout(dropout) {
    torch::manual_seed(3);
    linear = register_module("linear", torch::nn::Linear(6, 6));
    spare = register_parameter("spare", torch::ones({2}));
    frozen = register_parameter("frozen", torch::full({6}, 0.5), /*requires_grad=*/false);
  }
  torch::Tensor forward(torch::Tensor x) {
    ++calls;
    if (calls == fail_at) throw std::runtime_error("no more layers");
    return x + torch::dropout(torch::gelu(linear->forward(x * frozen)), dropout, /*train=*/true);
  }
  const double dropout;
  torch::nn::Linear linear{nullptr};
  torch::Tensor spare, frozen;
  int calls = 0;
  int fail_at = -1;
};

torch::Tensor Input() {
  torch::manual_seed(9);
  return torch::randn({4, 6}).requires_grad_();
}

// What a plain call and a checkpointed one give.
struct Outcome {
  torch::Tensor y, x_gradient, weight_gradient, next_random;
};

template <typename F>
Outcome RunOnce(LayerImpl& layer, F&& forward) {
  torch::Tensor x = Input();
  Outcome outcome;
  outcome.y = forward(x);
  (void)torch::rand({3});  // Backward begins with another random state than the segment did.
  outcome.y.square().sum().backward();
  outcome.x_gradient = x.grad();
  outcome.weight_gradient = layer.linear->weight.grad();
  outcome.next_random = torch::rand({3});
  return outcome;
}

void ExpectSameBits(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(torch::equal(a.y, b.y));
  EXPECT_TRUE(torch::equal(a.x_gradient, b.x_gradient));
  EXPECT_TRUE(torch::equal(a.weight_gradient, b.weight_gradient));
  EXPECT_TRUE(torch::equal(a.next_random, b.next_random)) << "backward drew no random numbers";
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

TEST(CheckpointTest, GivesTheBitsOfThePlainCallWithRandomNumbersToo) {  // CKW-2, CKW-4
  auto plain = std::make_shared<LayerImpl>();
  auto kept = std::make_shared<LayerImpl>();
  const Outcome expected = RunOnce(*plain, [&](torch::Tensor x) { return plain->forward(x); });
  ExpectSameBits(expected, RunOnce(*kept, [&](torch::Tensor x) { return Checkpoint(kept, x); }));
  EXPECT_EQ(plain->calls, 1);
  EXPECT_EQ(kept->calls, 2);
  EXPECT_FALSE(kept->spare.grad().defined()) << "a parameter that is not used has no gradient";
}

TEST(CheckpointTest, NestedSegmentsGiveTheSameBits) {
  auto plain = std::make_shared<LayerImpl>();
  auto kept = std::make_shared<LayerImpl>();
  const Outcome expected =
      RunOnce(*plain, [&](torch::Tensor x) { return plain->forward(plain->forward(x) * 2); });
  const Outcome outcome = RunOnce(*kept, [&](torch::Tensor x) {
    return CheckpointWith(
        {kept}, [kept](torch::Tensor x) { return Checkpoint(kept, Checkpoint(kept, x) * 2); }, x);
  });
  ExpectSameBits(expected, outcome);
  EXPECT_EQ(kept->calls, 6) << "forward, its recomputation, and that of each inner segment";
}

TEST(CheckpointTest, StructuresOfTensorsGoInAndOut) {  // CKW-2
  using Inner = std::tuple<torch::Tensor, torch::Tensor>;
  const auto segment = [](std::vector<torch::Tensor> xs, int factor, torch::Tensor index) {
    return std::pair<Inner, int>({torch::mul(xs[0], xs[1]) * factor, index + 1}, factor + 1);
  };
  torch::Tensor x = torch::ones({2}).requires_grad_(), y = torch::full({2}, 3.0);
  const auto [tensors, number] =
      Checkpoint(segment, std::vector<torch::Tensor>{x, y}, 5, torch::arange(2));
  EXPECT_EQ(number, 6);
  EXPECT_EQ(std::get<1>(tensors)[1].item<int64_t>(), 2);
  EXPECT_FALSE(std::get<1>(tensors).requires_grad());
  std::get<0>(tensors).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 15.0)));
}

TEST(CheckpointTest, OutputThatIsNotUsedHasNoPartInTheGradient) {
  torch::Tensor x = torch::ones({2}).requires_grad_();
  auto outputs = Checkpoint(
      [](torch::Tensor x) {
        return std::vector<torch::Tensor>{x * 2, x * 3};
      },
      x);
  outputs[1].sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 3.0)));
}

TEST(CheckpointTest, WithoutGradientsIsThePlainCall) {
  auto layer = std::make_shared<LayerImpl>();
  {
    torch::NoGradGuard no_grad;
    EXPECT_FALSE(Checkpoint(layer, Input()).requires_grad());
  }
  torch::Tensor scale = torch::ones({1}).requires_grad_();
  Checkpoint([scale](torch::Tensor x) { return x * scale; }, torch::ones({2})).sum().backward();
  EXPECT_EQ(scale.grad().item<float>(), 2) << "nothing that was given needs a gradient";
}

TEST(CheckpointTest, AutocastIsInTheRecomputationWhatItWas) {
  const auto type = [](torch::Tensor x, torch::Tensor w) { return torch::mm(x, w); };
  torch::Tensor x = Input(), w = torch::ones({6, 6}).requires_grad_();
  at::autocast::set_cpu_enabled(true);
  torch::Tensor y = Checkpoint(type, x, w);
  at::autocast::set_cpu_enabled(false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  y.sum().backward();
  EXPECT_FALSE(at::autocast::is_cpu_enabled());
  EXPECT_EQ(w.grad().scalar_type(), torch::kFloat32);
}

TEST(CheckpointTest, TensorThatWasNotGivenIsRefusedNotForgotten) {
  torch::Tensor x = Input(), weight = torch::ones({4, 6}).requires_grad_();
  torch::Tensor y = Checkpoint([weight](torch::Tensor x) { return x * weight; }, x);
  EXPECT_THAT(StatusOf([&] { y.sum().backward(); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shape [4, 6]")));
  torch::Tensor made_outside = x * 2;
  y = Checkpoint([made_outside](torch::Tensor x) { return x * made_outside; }, x);
  EXPECT_THAT(StatusOf([&] { y.sum().backward(); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MulBackward")));
}

TEST(CheckpointTest, InputThatIsChangedInPlaceIsRefused) {
  torch::Tensor x = Input() * 1;
  EXPECT_THAT(StatusOf([&] { Checkpoint([](torch::Tensor x) { return x.mul_(2); }, x); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("input 0 in place")));
  torch::Tensor later = Input() * 1;
  torch::Tensor y = Checkpoint([](torch::Tensor x) { return x * x; }, later);
  later.mul_(2);
  EXPECT_THAT(StatusOf([&] { y.sum().backward(); }),
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("modified by an inplace operation")));
}

TEST(CheckpointTest, AnotherNumberOfTensorsInTheRecomputationIsRefused) {
  auto count = std::make_shared<int>(0);
  auto outputs = Checkpoint(
      [count](torch::Tensor x) { return std::vector<torch::Tensor>(++*count, x * 2); }, Input());
  EXPECT_THAT(StatusOf([&] { outputs[0].sum().backward(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("returned 1 tensors, and in its recomputation 2")));
}

TEST(CheckpointTest, ExceptionInTheRecomputationIsThrownAndLeavesNothingChanged) {
  auto layer = std::make_shared<LayerImpl>();
  layer->fail_at = 2;
  torch::Tensor y = Checkpoint(layer, Input());
  const torch::Tensor random = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THAT(StatusOf([&] { y.sum().backward(); }),
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("no more layers")));
  EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), random));
  EXPECT_FALSE(layer->linear->weight.grad().defined());
  auto plain = std::make_shared<LayerImpl>();
  const Outcome expected = RunOnce(*plain, [&](torch::Tensor x) { return plain->forward(x); });
  ExpectSameBits(expected, RunOnce(*layer, [&](torch::Tensor x) { return Checkpoint(layer, x); }));
}

}  // namespace
}  // namespace tessera
