// Sharded models train as the plain ones do: nested units, tied weights, experts, units used twice
// or not at all, every strategy and prefetch. (PyTorch: test_fsdp_core, _multiple_forward,
// _multiple_wrapping, _misc, test_fully_shard_autograd, _training)
#include <tuple>

#include "absl/strings/match.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

constexpr int kWorldSize = 2;

class ParityTest : public ConformanceTest {
 protected:
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

// CORE-1 (not offload, device init), CORE-2, CORE-4, WRAP-3.
using Parameters = std::tuple<Strategy, BackwardPrefetch, bool>;  // Forward prefetch.
class EveryStrategyTest : public ParityTest, public testing::WithParamInterface<Parameters> {};

TEST_P(EveryStrategyTest, NestedUnitsTrainAsThePlainModel) {
  for (const bool many : {false, true}) {
    SessionOptions options = Options(kWorldSize);
    std::tie(options.config.strategy, options.config.backward_prefetch,
             options.config.forward_prefetch) = GetParam();
    Training<Nested> training;
    training.make = [] { return std::make_shared<Nested>(); };
    training.policy = many ? ManyUnits() : NestedUnits();
    Train<Nested>(training, options, [&](Nested&, ShardedModel& model, int64_t) {
      EXPECT_EQ(model.session().num_units(), many ? 5 : 4);
    });
  }
}

// F2TR-3 (made fp64 before it is attached): what fp32 would lose would be a hundred million times
// the tolerance.
TEST_P(EveryStrategyTest, ModelInFp64HasShardsGradientsAndOptimizerInFp64) {
  SessionOptions options = Options(kWorldSize);
  std::tie(options.config.strategy, options.config.backward_prefetch,
           options.config.forward_prefetch) = GetParam();
  options.config.optimizer = OptimizerKind::kAdamW;
  options.config.groups[0].learning_rate = 0.01;
  Training<Nested> training;
  training.make = [] {
    auto model = std::make_shared<Nested>();
    model->to(torch::kFloat64);
    return model;
  };
  training.loss = [](Nested& model, int64_t step, int rank) {
    return model.forward(Samples(step, rank, {4, 8}).to(torch::kFloat64)).pow(2).sum();
  };
  training.steps = 10;
  training.policy = NestedUnits();
  training.tolerance = 1e-13;
  Train<Nested>(training, options, [&](Nested& model, ShardedModel& sharded, int64_t) {
    EXPECT_EQ(model.in->weight.scalar_type(), torch::kFloat64);
    for (int unit = 0; unit < sharded.session().num_units(); ++unit)
      EXPECT_EQ(sharded.session().full_dtype(unit), DType::kFp64);
  });
}

// MISC-18: all parameters of the root and of the pair are in inner units.
struct PairImpl : torch::nn::Module {
  PairImpl()
      : first(register_module("first", std::make_shared<LinearUnit>(5, 7))),
        second(register_module("second", std::make_shared<LinearUnit>(7, 5))) {}
  torch::Tensor forward(torch::Tensor x) { return second->forward(torch::tanh(first->forward(x))); }
  std::shared_ptr<LinearUnit> first, second;
};
struct HollowImpl : torch::nn::Module {
  HollowImpl()
      : in(register_module("in", std::make_shared<LinearUnit>(8, 5))),
        pair(register_module("pair", std::make_shared<Sharded<PairImpl>>())),
        out(register_module("out", std::make_shared<LinearUnit>(5, 3))) {
    FillParameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) {
    return out->forward(torch::tanh(pair->forward(in->forward(x))));
  }
  std::shared_ptr<LinearUnit> in;
  std::shared_ptr<Sharded<PairImpl>> pair;
  std::shared_ptr<LinearUnit> out;
};
using Hollow = Sharded<HollowImpl>;

TEST_P(EveryStrategyTest, ModulesWithoutParametersOfTheirOwnAreNoUnits) {
  SessionOptions options = Options(kWorldSize);
  std::tie(options.config.strategy, options.config.backward_prefetch,
           options.config.forward_prefetch) = GetParam();
  Training<Hollow> training;
  training.make = [] { return std::make_shared<Hollow>(); };
  training.loss = [](Hollow& model, int64_t step, int rank) {
    return model.forward(Samples(step, rank, {4, 8})).square().mean();
  };
  Train<Hollow>(training, options, [&](Hollow& model, ShardedModel& sharded, int64_t step) {
    ASSERT_EQ(sharded.session().num_units(), 4);
    model.eval();
    torch::Tensor evaluated[2];
    ASSERT_OK(sharded.RunStep([&] {
      torch::NoGradGuard no_grad;
      for (torch::Tensor& result : evaluated) result = model.forward(Samples(step, 0, {4, 8}));
      return absl::OkStatus();
    }));
    EXPECT_TRUE(torch::equal(evaluated[0], evaluated[1]));
    model.train();
    if (options.config.strategy != Strategy::kFullShard) return;
    for (int unit = 0; unit < 4; ++unit) EXPECT_TRUE(sharded.session().closed(unit)) << unit;
  });
}

// CORE-5, FLAT-5, FLAT-6, F2TR-14: the output's weight is the embedding's.
TEST_P(EveryStrategyTest, TiedTransformerTrainsAsThePlainModelAndItsBuffersStayItsOwn) {
  SessionOptions options = Options(kWorldSize);
  std::tie(options.config.strategy, options.config.backward_prefetch,
           options.config.forward_prefetch) = GetParam();
  options.config.optimizer = OptimizerKind::kAdam;
  options.config.groups[0].learning_rate = 0.01;
  // The gradient of a key's bias is 0 but for rounding, which Adam would blow up.
  options.config.groups[0].epsilon = 1e-3;
  Training<Transformer> training;
  training.make = [] { return std::make_shared<Transformer>(); };
  training.tolerance = 2e-5;  // A sum over 12 tokens, divided by its own root.
  Train<Transformer>(training, options,
                     [](Transformer& model, ShardedModel& sharded, int64_t step) {
                       EXPECT_EQ(model.calls.item<int64_t>(), step);
                       EXPECT_EQ(model.calls.scalar_type(), torch::kInt64);
                       EXPECT_EQ(sharded.session().num_units(), 5);
                       EXPECT_TRUE(model.output_weight.is_same(model.embedding->weight))
                           << "one tensor, two names";
                     });
}

// MISC-4, F2AUT-1: the second output counts in the first steps only. After every backward each unit
// but the root (and with no sharding none) is sharded.
TEST_P(EveryStrategyTest, OutputsThatTheLossLeavesOutAreCaughtAtTheEndOfBackward) {
  struct TwoHeadsImpl : torch::nn::Module {
    TwoHeadsImpl()
        : trunk(register_module("trunk", std::make_shared<LinearUnit>(5, 7))),
          left(register_module("left", std::make_shared<LinearUnit>(7, 3))),
          right(register_module("right", std::make_shared<LinearUnit>(7, 3))) {
      scale = register_parameter("scale", torch::ones({1}));
      FillParameters(*this);
    }
    std::pair<torch::Tensor, torch::Tensor> forward(torch::Tensor x) {
      x = torch::tanh(trunk->forward(x * scale));
      return {left->forward(x), right->forward(x)};
    }
    std::shared_ptr<LinearUnit> trunk, left, right;
    torch::Tensor scale;
  };
  using TwoHeads = Sharded<TwoHeadsImpl>;
  SessionOptions options = Options(kWorldSize);
  std::tie(options.config.strategy, options.config.backward_prefetch,
           options.config.forward_prefetch) = GetParam();
  Training<TwoHeads> training;
  training.make = [] { return std::make_shared<TwoHeads>(); };
  training.steps = 6;
  training.loss = [](TwoHeads& model, int64_t step, int rank) {
    const auto [left, right] = model.forward(Samples(step, rank, {4, 5}));
    return step <= 2 ? (left * right).mean() : left.square().mean();
  };
  Train<TwoHeads>(training, options, [](TwoHeads&, ShardedModel& sharded, int64_t) {
    for (int unit = 0; unit < 4; ++unit) EXPECT_TRUE(sharded.session().closed(unit)) << unit;
  });
}

INSTANTIATE_TEST_SUITE_P(
    StrategiesAndPrefetch, EveryStrategyTest,
    testing::Combine(
        testing::Values(Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard),
        testing::Values(BackwardPrefetch::kNone, BackwardPrefetch::kPre, BackwardPrefetch::kPost),
        testing::Bool()));

// CORE-8, CORE-9: each rank's expert is its own, trained by its own optimizer.
TEST_F(ParityTest, ExpertsAreReducedOverTheirOwnRankAlone) {
  constexpr int kSteps = 4;
  const SessionOptions options = Options(kWorldSize);
  const auto expert_optimizer = [](Experts& model) {
    return torch::optim::SGD(model.expert->parameters(), torch::optim::SGDOptions(0.05));
  };
  const auto make = [](int rank) {
    auto model = std::make_shared<Experts>();
    torch::NoGradGuard no_grad;
    model->expert->weight.add_(0.1 * rank);
    return model;
  };
  // The reference: a model for each rank, whose shared gradients are averaged by hand.
  std::vector<std::shared_ptr<Experts>> plain;
  std::vector<torch::optim::SGD> experts;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> shared;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    plain.push_back(make(rank));
    experts.push_back(expert_optimizer(*plain.back()));
    std::vector<torch::Tensor> parameters = plain.back()->shared->parameters();
    for (const auto& parameter : plain.back()->head->parameters()) parameters.push_back(parameter);
    shared.push_back(std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9)));
  }
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ForgetGradients(*plain[rank]);
      LossOf(*plain[rank], step, rank).backward();
    }
    for (size_t p = 0; p < plain[0]->parameters().size(); ++p) {
      if (absl::StrContains(plain[0]->named_parameters()[p].key(), "expert")) continue;
      const torch::Tensor mean =
          (plain[0]->parameters()[p].grad() + plain[1]->parameters()[p].grad()) / kWorldSize;
      for (auto& model : plain) model->parameters()[p].mutable_grad() = mean.clone();
    }
    for (auto& optimizer : shared) optimizer->step();
    for (auto& optimizer : experts) optimizer.step();
  }
  ForEachRank(kWorldSize, [&](int rank) {
    auto model = make(rank);
    SessionOptions own = options;
    own.rank = rank;
    AttachOptions attach;
    attach.ignored.modules = {model->expert.ptr()};
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own, AlwaysWrap(), attach));
    torch::optim::SGD expert = expert_optimizer(*model);
    for (int64_t step = 1; step <= kSteps; ++step) {
      ASSERT_OK(sharded->RunStep([&] {
        expert.zero_grad();
        LossOf(*model, step, rank).backward();
        return sharded->Step();
      }));
      expert.step();
    }
    ExpectNear(WholeParameters(sharded.get(), *model), CopyOf(*plain[rank]), 3e-6);
  });
}

// MF-1, ORIG-6, F2TR-12: twice in one forward, and two forwards before one backward.
TEST_F(ParityTest, UnitsUsedTwiceBeforeABackwardTrainAsThePlainModel) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() : unit(register_module("unit", std::make_shared<LinearUnit>(6, 6))) {
      bias = register_parameter("bias", torch::zeros({6}));
      FillParameters(*this);
    }
    torch::Tensor forward(torch::Tensor x) {
      return unit->forward(torch::tanh(unit->forward(x) + bias)) + bias;
    }
    std::shared_ptr<LinearUnit> unit;
    torch::Tensor bias;
  };
  using Twice = Sharded<TwiceImpl>;
  for (const bool two_forwards : {false, true}) {
    Training<Twice> training;
    training.make = [] { return std::make_shared<Twice>(); };
    training.loss = [two_forwards](Twice& model, int64_t step, int rank) {
      torch::Tensor loss = model.forward(Samples(step, rank, {3, 6})).square().mean();
      if (two_forwards) loss = loss + model.forward(Samples(step + 50, rank, {5, 6})).abs().mean();
      return loss;
    };
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      SessionOptions options = Options(kWorldSize);
      options.config.strategy = strategy;
      Train(training, options);
    }
  }
}

// MISC-3, F2AUT-2: no gradient is none, not zero: weight decay and moments would move it.
TEST_F(ParityTest, UnitThatNoForwardUsesIsLeftAsItIs) {
  struct SpareImpl : torch::nn::Module {
    SpareImpl()
        : used(register_module("used", std::make_shared<LinearUnit>(4, 4))),
          spare(register_module("spare", std::make_shared<LinearUnit>(4, 4))) {
      scale = register_parameter("scale", torch::ones({4}));
      FillParameters(*this);
    }
    torch::Tensor forward(torch::Tensor x, bool all) {
      x = used->forward(x * scale);
      return all ? spare->forward(x) : x;
    }
    std::shared_ptr<LinearUnit> used, spare;
    torch::Tensor scale;
  };
  using Spare = Sharded<SpareImpl>;
  Training<Spare> training;
  training.make = [] { return std::make_shared<Spare>(); };
  training.steps = 5;
  training.tolerance = 1e-5;
  for (const bool sometimes : {false, true}) {
    training.loss = [sometimes](Spare& model, int64_t step, int rank) {
      return model.forward(Samples(step, rank, {3, 4}), sometimes && step == 2).square().mean();
    };
    SessionOptions options = Options(kWorldSize);
    options.config.optimizer = OptimizerKind::kAdamW;
    options.config.groups[0].learning_rate = 0.01;
    options.config.groups[0].weight_decay = 0.5;
    Train(training, options);
  }
}

// MISC-10, F2AUT-3, INP-1 (a struct of the user's stands for dict and namedtuple).
struct Batch {
  torch::Tensor x;
  std::vector<torch::Tensor> more;
};
template <typename F>
void ForEachTensor(Batch& batch, F&& f) {
  f(batch.x);
  for (torch::Tensor& tensor : batch.more) f(tensor);
}

TEST_F(ParityTest, TensorsInContainersAndStructsAreFoundInArgumentsAndResults) {
  struct PackImpl : torch::nn::Module {
    PackImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
    Batch forward(Batch batch) {
      return {linear->forward(batch.x), {linear->forward(batch.more[0]), batch.more[0]}};
    }
    torch::nn::Linear linear{nullptr};
  };
  struct TupleImpl : torch::nn::Module {
    TupleImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
    std::tuple<torch::Tensor, std::vector<torch::Tensor>> forward(std::vector<torch::Tensor> in) {
      return {linear->forward(in[0]), {linear->forward(in[1])}};
    }
    torch::nn::Linear linear{nullptr};
  };
  struct ModelImpl : torch::nn::Module {
    ModelImpl()
        : pack(register_module("pack", std::make_shared<Sharded<PackImpl>>())),
          tuple(register_module("tuple", std::make_shared<Sharded<TupleImpl>>())) {
      scale = register_parameter("scale", torch::ones({4}));
      FillParameters(*this);
    }
    std::optional<torch::Tensor> forward(torch::Tensor x) {
      const Batch batch = pack->forward(Batch{x * scale, {x}});
      const auto [a, b] = tuple->forward(std::vector<torch::Tensor>{batch.x, batch.more[0]});
      return a + b[0];
    }
    std::shared_ptr<Sharded<PackImpl>> pack;
    std::shared_ptr<Sharded<TupleImpl>> tuple;
    torch::Tensor scale;
  };
  using Model = Sharded<ModelImpl>;
  Training<Model> training;
  training.make = [] { return std::make_shared<Model>(); };
  training.loss = [](Model& model, int64_t step, int rank) {
    return model.forward(Samples(step, rank, {3, 4}))->square().mean();
  };
  Train(training, Options(kWorldSize));
}

// F2TR-7: a unit below the root is trained through by itself, in a step of its own.
TEST_F(ParityTest, ForwardAndBackwardThroughAChildAloneTrainAsThePlainModel) {
  Training<Nested> training;
  training.make = [] { return std::make_shared<Nested>(); };
  training.policy = NestedUnits();
  training.steps = 4;
  training.loss = [](Nested& model, int64_t step, int rank) {
    if (step % 2 == 1) return LossOf(model, step, rank);
    return model.inner->forward(Samples(step, rank, {4, 4})).square().mean();
  };
  Train(training, Options(kWorldSize));
}

// MW-1: what a first attachment leaves does not disturb a second one. (A module that was
// detached is empty, so each gets a new one.)
TEST_F(ParityTest, ModulesAttachedOneAfterAnotherTrainAsOne) {
  const SessionOptions options = Options(kWorldSize);
  Training<Nested> training;
  training.make = [] { return std::make_shared<Nested>(); };
  training.policy = NestedUnits();
  const Outcome expected = TrainPlain(training, options.config);
  ForEachRank(kWorldSize, [&](int rank) {
    SessionOptions own = options;
    own.rank = rank;
    own.wait_if_attached = true;
    for (int64_t step = 1; step <= training.steps + 1; ++step) {
      auto model = std::make_shared<Nested>();
      ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own, training.policy));
      ASSERT_EQ(sharded->next_step(), step);
      if (step > training.steps) {
        ExpectNear(WholeParameters(sharded.get(), *model), expected.parameters, 3e-6);
        continue;
      }
      ASSERT_OK(sharded->RunStep([&] {
        LossOf(*model, step, rank).backward();
        return sharded->Step();
      }));
    }
  });
}

// CORE-13, MISC-2: evaluations between training steps, with and without gradients, do not disturb
// them, and give the same output.
TEST_F(ParityTest, EvaluationsBetweenStepsAgreeAndDisturbNothing) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
      SessionOptions options = Options(kWorldSize);
      options.config.strategy = strategy;
      options.config.compute_dtype = dtype;
      ForEachRank(kWorldSize, [&](int rank) {
        SessionOptions own = options;
        own.rank = rank;
        auto model = std::make_shared<Nested>();
        AttachOptions attach;
        if (dtype != DType::kFp32) attach.precision.param_dtype = dtype;
        ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own, NestedUnits(), attach));
        for (int64_t step = 1; step <= 3; ++step) {
          ASSERT_OK(sharded->RunStep([&] {
            LossOf(*model, step, rank).backward();
            return sharded->Step();
          }));
          const torch::Tensor x = Samples(9, rank, {4, 8});
          model->eval();
          const torch::Tensor with_graph = model->forward(x).detach();
          torch::NoGradGuard no_grad;
          EXPECT_TRUE(torch::equal(model->forward(x), with_graph)) << "step " << step;
          model->train();
          EXPECT_TRUE(torch::equal(model->forward(x), with_graph));
        }
        EXPECT_EQ(sharded->next_step(), 4);
      });
    }
  }
}

// CORE-10, CORE-14 (views stay the module's own tensors), ORIG-13: parameters are the original ones
// in forward, at one address, and show what was written after attaching.
TEST_F(ParityTest, ParametersInForwardAreTheOriginalOnesAndShowWhatWasWritten) {
  const SessionOptions options = Options(kWorldSize);
  ForEachRank(kWorldSize, [&](int rank) {
    SessionOptions own = options;
    own.rank = rank;
    auto model = std::make_shared<Nested>(), plain = std::make_shared<Nested>();
    ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, own, NestedUnits()));
    const torch::Tensor x = Samples(1, rank, {4, 8});
    const torch::Tensor before = model->forward(x).detach();
    EXPECT_TRUE(torch::equal(before, plain->forward(x)));
    const void* address = model->inner->first->weight.data_ptr();
    const auto change = [](Nested& nested) {
      torch::NoGradGuard no_grad;
      nested.inner->first->weight.mul_(0.5);
    };
    ASSERT_OK(sharded->SummonFullParams({}, [&] {
      change(*model);
      return absl::OkStatus();
    }));
    change(*plain);
    const torch::Tensor after = model->forward(x);
    EXPECT_TRUE(torch::equal(after, plain->forward(x)));
    EXPECT_FALSE(torch::equal(after, before));
    EXPECT_EQ(model->inner->first->weight.data_ptr(), address);
    EXPECT_EQ(model->named_parameters().keys(), plain->named_parameters().keys());
    for (const auto& item : plain->named_parameters())
      EXPECT_EQ(model->named_parameters()[item.key()].sizes(), item.value().sizes());
  });
}

}  // namespace
}  // namespace tessera::conformance
