// Units of several modules. (PyTorch: test_fully_shard_comm, the parts on lists of modules)
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tessera/torch/activations.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {
namespace {

using testing::ElementsAre;
using Names = std::vector<std::vector<std::string>>;

using EmbeddingUnit = Sharded<torch::nn::EmbeddingImpl>;
using NormUnit = Sharded<torch::nn::LayerNormImpl>;

// Five layers of width 4 between two embeddings, and a norm with an output.
struct TextImpl : torch::nn::Module {
  TextImpl()
      : tokens(register_module("tokens", std::make_shared<EmbeddingUnit>(11, 4))),
        positions(register_module("positions", std::make_shared<EmbeddingUnit>(3, 4))) {
    for (int i = 0; i < 5; ++i) {
      layers.push_back(
          register_module(absl::StrCat("layer", i), std::make_shared<Sharded<MlpImpl>>(4)));
    }
    norm = register_module("norm", std::make_shared<NormUnit>(std::vector<int64_t>{4}));
    output = register_module("output", std::make_shared<LinearUnit>(4, 11));
    scale = register_parameter("scale", torch::ones({11}));
    FillParameters(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = tokens->forward(x);
    h = h + positions->forward(torch::arange(3));
    for (auto& layer : layers) h = h + (checkpoints ? Checkpoint(layer, h) : layer->forward(h));
    return output->forward(norm->forward(h)) * scale;
  }
  bool checkpoints = false;
  std::shared_ptr<EmbeddingUnit> tokens, positions;
  std::vector<std::shared_ptr<Sharded<MlpImpl>>> layers;
  std::shared_ptr<NormUnit> norm;
  std::shared_ptr<LinearUnit> output;
  torch::Tensor scale;
};
using Text = Sharded<TextImpl>;

torch::Tensor LossOf(Text& model, int64_t step, int rank) {
  const torch::Tensor x = (torch::arange(6, torch::kInt64).view({2, 3}) * (step + 2) + rank) % 11;
  return model.forward(x).square().mean();
}

// A unit of two modules of which forward uses one, and another unit.
struct PartlyUsedImpl : torch::nn::Module {
  PartlyUsedImpl()
      : unused(register_module("unused", std::make_shared<LinearUnit>(1, 1))),
        used(register_module("used", std::make_shared<LinearUnit>(4, 4))),
        last(register_module("last", std::make_shared<LinearUnit>(4, 4))) {
    scale = register_parameter("scale", torch::ones({4}));
    FillParameters(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last->forward(torch::relu(used->forward(x))) * scale;
  }
  std::shared_ptr<LinearUnit> unused, used, last;
  torch::Tensor scale;
};
using PartlyUsed = Sharded<PartlyUsedImpl>;

torch::Tensor LossOf(PartlyUsed& model, int64_t step, int rank) {
  return model.forward(Samples(step, rank, {3, 4})).square().mean();
}

class ModuleGroupsTest : public ConformanceTest {
 protected:
  template <typename M>
  static Training<M> TrainingOf(const Names& groups) {
    Training<M> training;
    training.make = [] { return std::make_shared<M>(); };
    training.loss = [](M& model, int64_t step, int rank) { return LossOf(model, step, rank); };
    training.policy = WrapTogether(groups);
    return training;
  }
  // Trains on two ranks and compares with the plain model. Rank 1's operations, which are the same
  // in each step, without the sizes of reductions.
  template <typename M>
  std::vector<std::string> Train(const Training<M>& training, const SessionOptions& options) {
    const Outcome expected = TrainPlain(training, options.config);
    ForEachRank(2, [&](int rank) {
      SessionOptions own = options;
      own.rank = rank;
      TrainSharded<M>(training, own, expected);
    });
    const std::vector<std::string> operations = OperationsOf(options.job_id, 1);
    for (int64_t step = 2; step <= training.steps; ++step)
      EXPECT_EQ(OperationsOf(options.job_id, step), operations) << "step " << step;
    return operations;
  }
  std::vector<std::string> OperationsOf(const std::string& job_id, int64_t step) {
    std::vector<std::string> operations = Operations(job_id, 1, step);
    for (std::string& operation : operations) {
      if (absl::StartsWith(operation, "reduce ")) operation.resize(operation.rfind(' '));
    }
    return operations;
  }
};

const Names& PairsOfText() {
  static const auto* const pairs = new Names{
      {"tokens", "positions"}, {"layer1", "layer2"}, {"layer3", "layer4"}, {"norm", "output"}};
  return *pairs;
}

// F2COMM-15, F2OLD-2: with and without segments that are computed again.
TEST_F(ModuleGroupsTest, GroupIsGatheredAndReducedAsOneAndOneThatIsKeptIsNotGatheredAgain) {
  for (const bool checkpoints : {false, true}) {
    Training<Text> training = TrainingOf<Text>(PairsOfText());
    training.make = [checkpoints] {
      auto model = std::make_shared<Text>();
      model->checkpoints = checkpoints;
      return model;
    };
    training.policy.strategy = [](const WrapCandidate& unit) {
      return unit.name == "norm, output" ? std::make_optional(Strategy::kShardGradOp)
                                         : std::nullopt;
    };
    EXPECT_THAT(
        Train(training, Options(2)),
        ElementsAre("unshard root", "unshard tokens, positions", "unshard layer0",
                    "unshard layer1, layer2", "unshard layer3, layer4", "unshard norm, output",
                    "reduce root", "unshard layer3, layer4", "reduce norm, output",
                    "unshard layer1, layer2", "reduce layer3, layer4", "unshard layer0",
                    "reduce layer1, layer2", "unshard tokens, positions", "reduce layer0",
                    "reduce tokens, positions", "step"))
        << "checkpoints: " << checkpoints;
  }
}

TEST_F(ModuleGroupsTest, OtherStrategiesGatherAGroupOnceAStep) {
  for (const Strategy strategy : {Strategy::kShardGradOp, Strategy::kNoShard}) {
    SessionOptions options = Options(2);
    options.config.strategy = strategy;
    const auto operations = Train(TrainingOf<Text>(PairsOfText()), options);
    EXPECT_EQ(Count(operations, "unshard"), 6);
    EXPECT_EQ(Count(operations, "reduce"), 6);
  }
}

// F2COMM-16.
TEST_F(ModuleGroupsTest, GroupOfWhichOneModuleRunsNoForwardStaysUntilTheEndOfBackward) {
  EXPECT_THAT(Train(TrainingOf<PartlyUsed>({{"unused", "used"}}), Options(2)),
              ElementsAre("unshard root", "unshard unused, used", "unshard last", "unshard last",
                          "reduce root", "reduce last", "reduce unused, used", "step"));
  auto model = std::make_shared<PartlyUsed>();
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, Options(1), WrapTogether({{"unused", "used"}})));
  ASSERT_OK(sharded->RunStep([&] {
    const torch::Tensor loss = LossOf(*model, 1, 0);
    EXPECT_TRUE(sharded->session().unsharded(1)) << "the group";
    EXPECT_TRUE(sharded->session().closed(2));
    loss.backward();
    EXPECT_TRUE(sharded->session().closed(1));
    EXPECT_FALSE(model->unused->weight.grad().defined());
    return sharded->Step();
  }));
}

// The window is open while the unit in between has its own.
TEST_F(ModuleGroupsTest, ModulesOfAGroupNeedNotBeNeighbours) {
  SessionOptions options = Options(2);
  options.config.gradient_slots = 0;  // Gradients of several units wait for their reduction.
  const auto operations =
      Train(TrainingOf<Text>({{"layer0", "layer2"}, {"tokens", "output"}}), options);
  EXPECT_THAT(operations, ElementsAre("unshard root", "unshard tokens, output", "unshard positions",
                                      "unshard layer0, layer2", "unshard layer1", "unshard layer3",
                                      "unshard layer4", "unshard norm", "unshard tokens, output",
                                      "reduce root", "unshard norm", "unshard layer4",
                                      "reduce norm", "unshard layer3", "reduce layer4",
                                      "unshard layer0, layer2", "reduce layer3", "unshard layer1",
                                      "unshard positions", "reduce layer1", "reduce layer0, layer2",
                                      "reduce positions", "reduce tokens, output", "step"));
}

// What one step left undone would make the next one's first module the last.
TEST_F(ModuleGroupsTest, ForwardThatAnErrorEndedInTheMiddleOfAGroupIsForgotten) {
  auto model = std::make_shared<Text>();
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, Options(1), WrapTogether(PairsOfText())));
  EXPECT_THAT(sharded->RunStep([&] {
    model->layers[2]->forward(torch::ones({2, 4}));
    return absl::CancelledError("enough");
  }),
              StatusIs(absl::StatusCode::kCancelled, testing::HasSubstr("enough")));
  ASSERT_OK(sharded->RunStep([&] {
    const torch::Tensor loss = LossOf(*model, 1, 0);
    for (int unit = 1; unit < 6; ++unit) EXPECT_TRUE(sharded->session().closed(unit)) << unit;
    loss.backward();
    return sharded->Step();
  }));
}

TEST_F(ModuleGroupsTest, EachModuleOfAGroupMeansItsUnit) {
  auto model = std::make_shared<Text>();
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, Options(1), WrapTogether(PairsOfText())));
  EXPECT_OK(sharded->SetForwardPrefetch(*model->norm, {model->positions.get()}));
  SummonOptions options;
  options.module = model->output.get();
  ASSERT_OK(sharded->SummonFullParams(options, [&] {
    torch::NoGradGuard no_grad;
    model->norm->weight.fill_(2);
    model->output->bias.fill_(3);
    return absl::OkStatus();
  }));
  const Tensors whole = WholeParameters(sharded.get(), *model);
  EXPECT_TRUE(torch::equal(whole.at("norm.weight"), torch::full({4}, 2.0)));
  EXPECT_TRUE(torch::equal(whole.at("output.bias"), torch::full({11}, 3.0)));
}

}  // namespace
}  // namespace tessera::conformance
