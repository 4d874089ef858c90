// Parameters without requires_grad, from the start or for a while.
// (PyTorch: test_fsdp_fine_tune, _freezing_weights, _use_orig_params, test_fully_shard_frozen)
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

using testing::ElementsAre;

constexpr int kWorldSize = 2;

// Six linear layers, each a unit; those with an even number are frozen.
struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(
          register_module(absl::StrCat("layer", i), std::make_shared<LinearUnit>(5, 5)));
    }
    scale = register_parameter("scale", torch::ones({5}));
    FillParameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer->forward(x));
    return x * scale;
  }
  void Freeze(bool frozen) {
    for (int i = 0; i < 6; i += 2) {
      for (torch::Tensor& parameter : layers[i]->parameters()) parameter.requires_grad_(!frozen);
    }
  }
  std::vector<std::shared_ptr<LinearUnit>> layers;
  torch::Tensor scale;
};
using Layers = Sharded<LayersImpl>;

torch::Tensor LossOf(Layers& model, int64_t step, int rank) {
  return model.forward(Samples(step, rank, {3, 5})).square().mean();
}

// A unit whose first operation needs a frozen parameter, after a unit that is trained.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl()
      : linear(register_module("linear", torch::nn::Linear(5, 5))),
        scale(register_parameter("scale", torch::ones({5}), /*requires_grad=*/false)) {}
  torch::Tensor forward(torch::Tensor x) { return linear->forward(x * scale); }
  torch::nn::Linear linear;
  torch::Tensor scale;
};
struct BehindImpl : torch::nn::Module {
  BehindImpl()
      : first(register_module("first", std::make_shared<LinearUnit>(5, 5))),
        scaled(register_module("scaled", std::make_shared<Sharded<ScaledImpl>>())),
        last(register_module("last", torch::nn::Linear(5, 1))) {
    FillParameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) {
    return last->forward(scaled->forward(torch::tanh(first->forward(x))));
  }
  std::shared_ptr<LinearUnit> first;
  std::shared_ptr<Sharded<ScaledImpl>> scaled;
  torch::nn::Linear last;
};
using Behind = Sharded<BehindImpl>;

torch::Tensor LossOf(Behind& model, int64_t step, int rank) {
  return model.forward(Samples(step, rank, {3, 5})).square().mean();
}

class FrozenTest : public ConformanceTest, public testing::WithParamInterface<Strategy> {
 protected:
  SessionOptions OptionsOfStrategy() {
    SessionOptions options = Options(kWorldSize);
    options.config.strategy = GetParam();
    options.config.optimizer = OptimizerKind::kAdam;
    options.config.groups[0].learning_rate = 0.01;
    return options;
  }
  template <typename M>
  void Train(const Training<M>& training, SessionOptions options,
             const std::function<void(M&, ShardedModel&, int64_t)>& after_step = nullptr) {
    const Outcome expected = TrainPlain(training, options.config);
    ForEachRank(options.config.world_size, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      TrainSharded(training, own, expected, after_step);
    });
  }
};

// FT-1, FT-3, F2FRZ-2: with an input that needs a gradient and one that does not.
TEST_P(FrozenTest, FrozenUnitsAreReshardedReducedNeverAndTrainAsThePlainModel) {
  for (const bool input_needs_gradient : {false, true}) {
    const SessionOptions options = OptionsOfStrategy();
    Training<Layers> training;
    training.make = [] {
      auto model = std::make_shared<Layers>();
      model->Freeze(true);
      return model;
    };
    training.steps = 4;
    training.tolerance = 1e-5;
    training.loss = [&](Layers& model, int64_t step, int rank) {
      torch::Tensor x = Samples(step, rank, {3, 5});
      x.requires_grad_(input_needs_gradient);
      {
        torch::NoGradGuard no_grad;  // A forward in between, as an evaluation makes.
        if (step == 2) model.forward(x);
      }
      return model.forward(x).square().mean();
    };
    Train<Layers>(training, options, [](Layers& model, ShardedModel& sharded, int64_t) {
      for (int unit = 0; unit < 7; ++unit) EXPECT_TRUE(sharded.session().closed(unit)) << unit;
      EXPECT_FALSE(model.layers[0]->weight.requires_grad());
      EXPECT_TRUE(model.layers[1]->weight.requires_grad());
    });
    std::vector<std::string> reduced;
    for (const std::string& operation : Operations(options.job_id, 0, 3)) {
      if (operation.substr(0, 6) == "reduce") reduced.push_back(operation.substr(0, 13));
    }
    EXPECT_THAT(reduced,
                ElementsAre("reduce root 2", "reduce layer5", "reduce layer3", "reduce layer1"));
  }
}

// FT-1 (its last step), ORIG-16, OSD-22: what is frozen later gets no gradient, and is thawed
// again.
TEST_P(FrozenTest, ParametersFrozenForAWhileAreLeftAsTheyAreMeanwhile) {
  Training<Layers> training;
  training.make = [] { return std::make_shared<Layers>(); };
  training.steps = 6;
  training.tolerance = 2e-5;
  training.before_step = [](Layers& model, int64_t step) { model.Freeze(step % 3 != 0); };
  Train(training, OptionsOfStrategy());
}

// FT-2, F2FRZ-3: a frozen and a trainable unit, used ten times, in between without a graph.
TEST_P(FrozenTest, FrozenUnitsUsedManyTimesTrainAsThePlainModel) {
  Training<Layers> training;
  training.make = [] {
    auto model = std::make_shared<Layers>();
    model->Freeze(true);
    return model;
  };
  training.steps = 3;
  training.tolerance = 1e-5;
  training.loss = [](Layers& model, int64_t step, int rank) {
    torch::Tensor x = Samples(step, rank, {3, 5});
    for (int i = 0; i < 10; ++i) {
      x = torch::tanh(model.layers[1]->forward(model.layers[0]->forward(x)));
      torch::NoGradGuard no_grad;
      model.layers[1]->forward(x);
    }
    return (x * x).mean();
  };
  Train(training, OptionsOfStrategy());
}

// Two forwards, and a backward for each: in the second one too, the unit's own gradients are there
// before what is computed of its frozen parameter.
TEST_P(FrozenTest, BackwardsOfSeveralForwardsReadFrozenParametersToTheirEnd) {
  SessionOptions options = OptionsOfStrategy();
  options.config.gradient_slots = 0;
  Training<Behind> training;
  training.make = [] { return std::make_shared<Behind>(); };
  training.loss = [](Behind& model, int64_t step, int rank) {
    return LossOf(model, step, rank) + LossOf(model, step + 20, rank);
  };
  const Outcome expected = TrainPlain(training, options.config);
  ForEachRank(kWorldSize, [&](int rank) {
    const std::shared_ptr<Behind> model = training.make();
    SessionOptions own = options;
    own.rank = rank;
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own));
    for (int64_t step = 1; step <= training.steps; ++step) {
      ASSERT_OK(sharded->RunStep([&] {
        const torch::Tensor first = LossOf(*model, step, rank);
        const torch::Tensor second = LossOf(*model, step + 20, rank);
        {
          const ShardedModel::NoSync no_sync(sharded.get());
          first.backward();
        }
        second.backward();
        return sharded->Step();
      }));
    }
    ExpectNear(WholeParameters(sharded.get(), *model), expected.parameters, 5e-6);
  });
}

// F2FRZ-1: three units and a root of which just the biases are trainable.
TEST_P(FrozenTest, OfMixedUnitsJustTheTrainableParametersAreReduced) {
  static constexpr int64_t kDim = 6, kSteps = 10;
  for (const bool checkpoints : {false, true}) {
    SessionOptions options = OptionsOfStrategy();
    Training<MlpStack> training;
    training.make = [checkpoints] {
      auto model = std::make_shared<MlpStack>(kDim);
      model->checkpoints = checkpoints;
      for (auto& parameter : model->named_parameters()) {
        if (parameter.key().find("weight") != std::string::npos)
          parameter.value().requires_grad_(false);
      }
      return model;
    };
    training.steps = kSteps;
    training.tolerance = 2e-5;
    Train(training, options);
    std::vector<std::string> operations = Operations(options.job_id, 0, kSteps);
    EXPECT_EQ(operations, Operations(options.job_id, 1, kSteps));
    const auto place_of = [&](const std::string& operation) {
      return std::find(operations.rbegin(), operations.rend(), operation) - operations.rbegin();
    };
    if (GetParam() == Strategy::kFullShard) {
      EXPECT_GT(place_of(absl::StrCat("reduce mlp2 ", 5 * kDim * sizeof(float))),
                place_of("unshard mlp0"))
          << "backward goes on beside it";
    }
    operations.erase(std::remove_if(operations.begin(), operations.end(),
                                    [](const std::string& operation) {
                                      return operation.substr(0, 6) != "reduce";
                                    }),
                     operations.end());
    const std::string mlp = absl::StrCat(" ", 5 * kDim * sizeof(float));
    EXPECT_THAT(operations,
                ElementsAre(absl::StrCat("reduce root ", kDim * sizeof(float)), "reduce mlp2" + mlp,
                            "reduce mlp1" + mlp, "reduce mlp0" + mlp));
  }
}

// FT-4: a frozen unit whose input needs no gradient, against the same unit trainable but out of the
// optimizer (a learning rate of zero).
TEST_P(FrozenTest, FrozenIsAsTrainableWithoutAnUpdate) {
  Tensors parameters[2];
  for (const bool frozen : {true, false}) {
    SessionOptions options = OptionsOfStrategy();
    if (!frozen) {
      ParamGroup& group = options.config.groups.emplace_back(options.config.groups[0]);
      group.learning_rate = 0;
      group.parameter_names = {"0.weight", "0.bias"};
    }
    ForEachRank(kWorldSize, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      auto model = std::make_shared<Nested>();
      if (frozen) {
        for (torch::Tensor& parameter : model->in->parameters()) parameter.requires_grad_(false);
      }
      ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own, ManyUnits()));
      for (int64_t step = 1; step <= 3; ++step) {
        ASSERT_OK(sharded->RunStep([&] {
          LossOf(*model, step, rank).backward();
          return sharded->Step();
        }));
      }
      const Tensors whole = WholeParameters(sharded.get(), *model);
      if (rank == 0) parameters[frozen] = whole;
    });
  }
  ExpectNear(parameters[true], parameters[false], 0);
}

// NonUniformReqGradNWM: only the last layer is trainable, so most units have nothing to reduce.
TEST_P(FrozenTest, ModelOfWhichAlmostNothingIsTrainableTrainsAsThePlainModel) {
  Training<Nested> training;
  training.make = [] { return std::make_shared<Nested>(/*non_uniform=*/true); };
  training.policy = NestedUnits();
  training.tolerance = 1e-5;
  const SessionOptions options = OptionsOfStrategy();
  Train(training, options);
  const auto operations = Operations(options.job_id, 0, 2);
  EXPECT_EQ(Count(operations, "reduce root"), 1);
  EXPECT_EQ(Count(operations, "reduce"), 1);
}

// FRZ-1, FRZ-2: a convolutional trunk, frozen by its flags, by no graph, or since its features are
// detached.
TEST_P(FrozenTest, TrunkFrozenInAnyWayStaysAsItIsAndTheHeadTrains) {
  struct TrunkImpl : torch::nn::Module {
    TrunkImpl()
        : conv(register_module("conv",
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)))) {}
    torch::Tensor forward(torch::Tensor x) {
      return torch::adaptive_avg_pool2d(torch::relu(conv->forward(x)), {1, 1}).flatten(1);
    }
    torch::nn::Conv2d conv{nullptr};
  };
  enum class How { kFlags, kNoGraph, kDetached };
  struct ModelImpl : torch::nn::Module {
    explicit ModelImpl(How how)
        : how(how),
          trunk(register_module("trunk", std::make_shared<Sharded<TrunkImpl>>())),
          head(register_module("head", torch::nn::Linear(4, 3))) {
      FillParameters(*this);
      if (how != How::kFlags) return;
      for (torch::Tensor& parameter : trunk->parameters()) parameter.requires_grad_(false);
    }
    torch::Tensor forward(torch::Tensor x) {
      if (how == How::kFlags) return head->forward(trunk->forward(x));
      if (how == How::kDetached) return head->forward(trunk->forward(x).detach());
      torch::Tensor features;
      {
        torch::NoGradGuard no_grad;
        features = trunk->forward(x);
      }
      return head->forward(features);
    }
    const How how;
    std::shared_ptr<Sharded<TrunkImpl>> trunk;
    torch::nn::Linear head{nullptr};
  };
  using Model = Sharded<ModelImpl>;
  for (const How how : {How::kFlags, How::kNoGraph, How::kDetached}) {
    Training<Model> training;
    training.make = [how] { return std::make_shared<Model>(how); };
    training.loss = [](Model& model, int64_t step, int rank) {
      return model.forward(Samples(step, rank, {2, 3, 8, 8})).square().mean();
    };
    SessionOptions options = Options(kWorldSize);
    options.config.strategy = GetParam();
    const auto flags = [](const Model& model) {
      std::vector<bool> all;
      for (const torch::Tensor& parameter : model.parameters())
        all.push_back(parameter.requires_grad());
      return all;
    };
    Train<Model>(training, options, [&](Model& model, ShardedModel&, int64_t) {
      EXPECT_EQ(flags(model), flags(*training.make()));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, FrozenTest,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGradOp,
                                         Strategy::kNoShard));

}  // namespace
}  // namespace tessera::conformance
