// Shards of different fill, empty ones too, in worlds of 1 to 8; the norm of the gradient over
// them; gradients accumulated with and without no_sync. (PyTorch: test_fsdp_uneven,
// _unshard_params, _clip_grad_norm, _grad_acc, _use_orig_params, test_fully_shard_training,
// _clip_grad_norm_)

#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class UnevenTest : public ConformanceTest, public testing::WithParamInterface<int> {
 protected:
  template <typename M>
  void Train(const Training<M>& training, SessionOptions options) {
    const Outcome expected = TrainPlain(training, options.config);
    ForEachRank(options.config.world_size, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      TrainSharded(training, own, expected);
    });
  }
};

// One linear layer, and nothing else.
struct OneImpl : torch::nn::Module {
  OneImpl(int64_t in, int64_t out)
      : linear(register_module("linear",
                               torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)))) {
    FillParameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) { return linear->forward(x); }
  torch::nn::Linear linear{nullptr};
};
using One = Sharded<OneImpl>;

// UNEV-1: nine elements; every rank has its own row of input. Slices end at any element here.
TEST_P(UnevenTest, OneStepIsTheMeanOverTheRanksOfWhatEachComputesByHand) {
  const int world_size = GetParam();
  SessionOptions options = Options(world_size);
  options.config.layout.shard_alignment_bytes = 0;
  options.config.groups[0].momentum = 0;
  const torch::Tensor x = Samples(1, 0, {world_size, 3});
  ForEachRank(world_size, [&](int rank) {
    SessionOptions own = options;
    own.rank = rank;
    auto model = std::make_shared<One>(3, 3), plain = std::make_shared<One>(3, 3);
    const torch::Tensor weight = plain->linear->weight.detach().clone();
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
    EXPECT_EQ(sharded->session().layout().units[0].shards.shard_numel(),
              (9 + world_size - 1) / world_size);
    ASSERT_OK(sharded->RunStep([&] {
      const torch::Tensor y = model->forward(x[rank].unsqueeze(0));
      EXPECT_TRUE(torch::allclose(y, torch::matmul(x[rank].unsqueeze(0), weight.t())));
      y.sum().backward();
      return sharded->Step();
    }));
    const torch::Tensor gradient = x.mean(0).unsqueeze(0).expand({3, 3});
    ExpectNear(WholeParameters(sharded.get(), *model), {{"linear.weight", weight - 0.1 * gradient}},
               1e-6);
  });
}

// MLP dims 3, 16, 17; F2TR-4, A7-11: also worlds that are not a power of two.
TEST_P(UnevenTest, WidthsBelowAtAndNotDivisibleByTheWorldTrainAsThePlainModel) {
  for (const int64_t dim : {3, 16, 17}) {
    SessionOptions options = Options(GetParam());
    options.config.layout.shard_alignment_bytes = dim == 3 ? 0 : 128;
    Training<MlpStack> training;
    training.make = [dim] { return std::make_shared<MlpStack>(dim, 2); };
    Train(training, options);
  }
}

// F2TR-15, FLAT-6, A6-23: tied, and 23 rows over the ranks: every row moves, as in the plain model.
TEST_P(UnevenTest, EveryRowOfATiedWeightIsUpdated) {
  SessionOptions options = Options(GetParam());
  options.config.groups[0].learning_rate = 0.01;
  Training<Transformer> training;
  training.make = [] { return std::make_shared<Transformer>(); };
  training.steps = 2;
  training.tolerance = 2e-5;
  const Outcome expected = TrainPlain(training, options.config);
  const Tensors before = CopyOf(*training.make());
  const torch::Tensor moved =
      (expected.parameters.at("embedding.weight") - before.at("embedding.weight")).abs();
  EXPECT_GT(std::get<0>(moved.max(1)).min().item<float>(), 1e-4f) << "in the plain model";
  ForEachRank(GetParam(), [&](int rank) {
    SessionOptions own = options;
    own.rank = rank;
    TrainSharded(training, own, expected);
  });
}

// SUM-3, SD-15, A6-1, A6-2: one element; all other ranks' shards are padding, which nobody sees.
TEST_P(UnevenTest, ParameterOfOneElementIsWrittenWhereItIsAndPaddingNowhere) {
  SessionOptions options = Options(GetParam());
  options.config.layout.shard_alignment_bytes = 0;
  options.config.max_gradient_norm = 1e9;
  ForEachRank(GetParam(), [&](int rank) {
    SessionOptions own = options;
    own.rank = rank;
    auto model = std::make_shared<One>(1, 1);
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
    ASSERT_OK(sharded->SummonFullParams({}, [&] {
      torch::NoGradGuard no_grad;
      EXPECT_EQ(model->linear->weight.numel(), 1);
      model->linear->weight.fill_(2);
      return absl::OkStatus();
    }));
    double norm = 0;
    ASSERT_OK(sharded->RunStep([&] {
      model->forward(torch::full({1, 1}, 3.0)).sum().backward();
      auto result = sharded->StepWithResult();
      if (result.ok()) norm = result->gradient_norm;
      return result.status();
    }));
    EXPECT_FLOAT_EQ(norm, 3) << "padding is not in the norm";
    const Tensors whole = WholeParameters(sharded.get(), *model);
    EXPECT_FLOAT_EQ(whole.at("linear.weight").item<float>(), 2 - 0.1f * 3);
  });
}

// CLIP-2, CLIP-3, F2CLIP-1, F2CLIP-3, A6-20: returned norms and clipped updates, three steps on.
TEST_P(UnevenTest, ClippingIsThatOfThePlainModel) {
  const int world_size = GetParam();
  constexpr double kLarge = 100;  // So that clipping acts.
  for (const double max_norm : {1.0, 2.5}) {
    for (const double p : {1.0, 2.0, kInfinity}) {
      for (const Strategy strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
        SessionOptions options = Options(world_size);
        options.config.strategy = strategy;
        options.config.max_gradient_norm = max_norm;
        options.config.gradient_norm_p = p;
        auto plain = std::make_shared<MlpStack>(3, 2);
        const auto optimizer = PlainOptimizer(*plain, options.config);
        std::vector<double> norms;
        for (int64_t step = 1; step <= 3; ++step) {
          ForgetGradients(*plain);
          for (int rank = 0; rank < world_size; ++rank)
            (LossOf(*plain, step, rank) * kLarge / world_size).backward();
          norms.push_back(torch::nn::utils::clip_grad_norm_(plain->parameters(), max_norm, p));
          EXPECT_GT(norms.back(), max_norm);
          optimizer->step();
        }
        ForEachRank(world_size, [&](int rank) {
          SessionOptions own = options;
          own.rank = rank;
          auto model = std::make_shared<MlpStack>(3, 2);
          ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
          for (int64_t step = 1; step <= 3; ++step) {
            ASSERT_OK(sharded->RunStep([&]() -> absl::Status {
              (LossOf(*model, step, rank) * kLarge).backward();
              const auto result = sharded->StepWithResult();
              if (!result.ok()) return result.status();
              EXPECT_NEAR(result->gradient_norm, norms[step - 1], 2e-5 * norms[step - 1]);
              return absl::OkStatus();
            }));
          }
          ExpectNear(WholeParameters(sharded.get(), *model), CopyOf(*plain), 5e-6);
        });
      }
    }
  }
}

// CLIP-6, A6-1: no rank has a gradient: a norm of zero, nothing moves, nobody hangs.
TEST_P(UnevenTest, StepWithoutAnyGradientHasANormOfZeroAndChangesNothing) {
  SessionOptions options = Options(GetParam());
  options.config.strategy = Strategy::kShardGradOp;
  options.config.max_gradient_norm = 1;
  ForEachRank(GetParam(), [&](int rank) {
    SessionOptions own = options;
    own.rank = rank;
    auto model = std::make_shared<MlpStack>(3, 2);
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
    ASSERT_OK(sharded->RunStep([&]() -> absl::Status {
      LossOf(*model, 1, rank);
      const auto result = sharded->StepWithResult();
      if (!result.ok()) return result.status();
      EXPECT_EQ(result->gradient_norm, 0);
      return absl::OkStatus();
    }));
    ExpectNear(WholeParameters(sharded.get(), *model), CopyOf(*std::make_shared<MlpStack>(3, 2)),
               0);
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, UnevenTest, testing::Values(1, 2, 3, 4, 5, 6, 7, 8));

// GA-1, GA-3, ORIG-14, F2TR-17: sequences of passes in and out of no_sync, against one pass over
// all batches.
class AccumulationTest
    : public ConformanceTest,
      public testing::WithParamInterface<std::tuple<Strategy, BackwardPrefetch>> {};

TEST_P(AccumulationTest, GradientsAreThoseOfOnePassOverAllBatches) {
  constexpr int kWorldSize = 2, kBatches = 9;
  for (const std::vector<bool>& reduces :
       {std::vector<bool>{false, false, false, true, true, true, false, false, true},
        std::vector<bool>{true, true, true, false, false, false, true, true, true}}) {
    SessionOptions options = Options(kWorldSize);
    std::tie(options.config.strategy, options.config.backward_prefetch) = GetParam();
    options.config.gradient_slots = 0;
    const auto part_of = [](Nested& model, int batch, int rank) {
      return LossOf(model, batch, rank) / kBatches;
    };
    auto plain = std::make_shared<Nested>();
    for (int rank = 0; rank < kWorldSize; ++rank) {
      for (int batch = 0; batch < kBatches; ++batch)
        (part_of(*plain, batch, rank) / kWorldSize).backward();
    }
    ForEachRank(kWorldSize, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      auto model = std::make_shared<Nested>();
      ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own, NestedUnits()));
      Tensors gradients, parameters;
      ASSERT_OK(sharded->RunStep([&] {
        for (int batch = 0; batch < kBatches; ++batch) {
          std::optional<ShardedModel::NoSync> no_sync;
          if (!reduces[batch]) no_sync.emplace(sharded.get());
          part_of(*model, batch, rank).backward();
        }
        SummonOptions summon;
        summon.writeback = false;
        summon.with_grads = true;
        const absl::Status status = sharded->SummonFullParams(summon, [&] {
          parameters = CopyOf(*model);
          for (const auto& item : model->named_parameters())
            gradients[item.key()] = item.value().grad().detach().clone();
          return absl::OkStatus();
        });
        return status.ok() ? sharded->Step() : status;
      }));
      Tensors expected;
      for (const auto& item : plain->named_parameters()) expected[item.key()] = item.value().grad();
      ExpectNear(gradients, expected, 1e-6);
      ExpectNear(parameters, CopyOf(*plain), 0);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    StrategiesAndPrefetch, AccumulationTest,
    testing::Combine(
        testing::Values(Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard),
        testing::Values(BackwardPrefetch::kNone, BackwardPrefetch::kPre, BackwardPrefetch::kPost)));

}  // namespace
}  // namespace tessera::conformance
